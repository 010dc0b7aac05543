"""The connect broker: cells of a pool with `egress` have no network; this process makes and connects their sockets.

`rules` and `names` are pure. `notify` is the kernel's side of a filter's listener, `broker` the loop that answers it,
`resolver` and `responder` its two views of DNS, `program` its process, `desk` the supervisor's side. (egress.md)
"""
