"""A rehearsal: run one job type once under observation, and say what its pool would have to allow.

`actor` is the observed cell, `watch` the kernel's side of the observation, `sight` what a call means, `stage` the
observer, `allow` the list to review (pure). No store, no job, and no way from here into a worker: what is observed is
let through but for the store and the keys, so a rehearsal holds nobody.
"""
