"""Break the PostgreSQL verbs on purpose, one guard at a time, and see that a test fails for each. See twins.py.

The breaks are text replacements in the files of functions: the tests install them like any others.
"""

from __future__ import annotations

from collections.abc import Iterable

from scripts.breaking import Twin, run

FUNCTIONS = "benteng/store/postgres/functions"
SUITE = "tests/store/test_conformance_postgres.py"
ORDER = "tests/store/postgres/test_lock_order.py"
LOG = "tests/store/postgres/test_audit_order.py"
ANSWERS = "tests/store/postgres/test_connection.py"
BLOAT = "tests/store/postgres/test_bloat.py"
LOOKOUT = "tests/store/postgres/test_lookout.py"
COSTS = "tests/store/postgres/test_costs.py"
HOSTILE = "tests/store/postgres/test_hostile.py"
HINTS = "tests/store/postgres/test_hints.py"
EVIDENCE = "tests/store/postgres/test_evidence.py"
LANES = "tests/store/postgres/test_lanes.py"
ONE = "tests/store/postgres/test_enter_one.py"
RETENTION = "tests/store/postgres/test_retention.py"
GATHERED = "tests/store/postgres/test_pool_types.py"
ALIKE = ("type", "actor", "origin", "artifacts", "targets")
"""What jobs of one claim have in common when they share their facts."""


def twin(name: str, file: str, breaks: tuple[tuple[str, str], ...], tests: str, suite: str = SUITE) -> Twin:
    """Return the twin in which texts of one function's file are replaced."""
    return Twin(name, f"{FUNCTIONS}/{file}", breaks, tests, suite)


def _on(names: Iterable[str]) -> str:
    return f"on ({', '.join(f'j.{name}' for name in names)})"


TWINS = (
    # -- compare-and-set
    twin(
        "counts-forged",
        "settle.sql",
        ((", s.disposition <> 'complete' and s.error like 'egress %') as used", ") as used"),),
        "counts_of_an_attempt",
    ),
    twin("counts-of-the-done-not-said", "complete.sql", (("coalesce(g.used, '')", "''"),), "with_the_network"),
    twin("counts-not-said", "move_jobs.sql", (("p_here, p_used);", "p_here);"),), "with_the_network"),
    twin("fence-not-compared", "settle.sql", (("      and j.fence = a.fence\n", ""),), "forged or mixed"),
    twin("token-not-compared", "settle.sql", (("      and j.token = a.token\n", ""),), "forged or old_fence"),
    twin("plain-fence-not-compared", "complete.sql", (("      and j.fence = a.fence\n", ""),), "forged or old_fence"),
    twin("plain-token-not-compared", "complete.sql", (("      and j.token = a.token\n", ""),), "forged or old_fence"),
    twin("plain-pool-not-compared", "complete.sql", (("      and j.pool = p_me.pool\n", ""),), "forged"),
    twin(
        "plain-result-of-the-last",
        "complete.sql",
        (("      order by d.id, d.ord) a", "      order by d.id, d.ord desc) a"),),
        "forged_proof_beside",
    ),
    twin(
        "plain-unlooked", "complete.sql", (("      and (p_held or j.resources = '{}')\n", ""),), "wrong_about_resources"
    ),
    twin(
        "plain-rest-is-stale",
        "settle.sql",
        (("  where not exists (select from unnest(v_ords) d (ord) where p_ids[d.ord] = u.id);", "  where false;"),),
        "wrong_about_resources or stale",
    ),
    twin(
        "plain-twice-is-stale",
        "settle.sql",
        (("  where not exists (select from unnest(v_ords) d (ord) where p_ids[d.ord] = u.id);", "  where true;"),),
        "named_twice",
        ANSWERS,
    ),
    twin("extend-token", "extend.sql", (("      and j.token = a.token\n", ""),), "forged_proofs"),
    twin("extend-after-end", "extend.sql", (("      and j.lease_until > v_now\n", ""),), "after_the_lease_end"),
    twin(
        "reclaim-without-compare-and-set",
        "reclaim.sql",
        (("    for update skip locked) l;", "    ) l;"),),
        "reclaim_leaves",
        ORDER,
    ),
    twin(
        "again-by-id",
        "settle.sql",
        (
            ("    and s.fence = coalesce(j.fence, o.fence)\n    and s.token = coalesce(j.token, o.token)\n", ""),
            ("  where s.ordinality <> all (coalesce(p_done, '{}'))\n    and j.state", "  where j.state"),
        ),
        "lost_answer_of_settle",
        ANSWERS,
    ),
    twin("not-told-again", "settle.sql", (("  if p_again then", "  if false then"),), "lost_answer_of_settle", ANSWERS),
    twin("told-always", "settle.sql", (("  if p_again then", "  if true then"),), "settling_again", ANSWERS),
    twin(
        "again-is-stale",
        "settle.sql",
        (("and not (p_again and exists", "and not (false and exists"),),
        "lost_answer_of_settle",
        ANSWERS,
    ),
    twin(
        "again-is-never-stale",
        "settle.sql",
        (("and not (p_again and exists", "and not (true and exists"),),
        "settling_again",
        ANSWERS,
    ),
    Twin(
        "not-asked-again",
        "benteng/store/postgres/consumer.py",
        (("BOOL(True), *used)", "BOOL(False), *used)"),),
        "lost_answer_of_settle",
        ANSWERS,
    ),
    twin(
        "stale-in-silence",
        "settle.sql",
        (("  if coalesce(cardinality(v_ids), 0) = cardinality(p_settlements) then", "  if not p_again then"),),
        "stale or settling_again",
    ),
    twin(
        "attempt-not-held",
        "settle.sql",
        (("      order by x.id desc\n      limit 1\n      for update) j", ") j"),),
        "take_their_jobs",
        ORDER,
    ),
    twin(
        "twice-in-a-call", "settle.sql", (("    order by a.id, a.ord\n", "    order by a.id, a.ord desc\n"),), "twice"
    ),
    twin("holds-nothing", "settle.sql", (("v_now, v_spent, v_holds,", "v_now, v_spent, false,"),), "release or closed"),
    twin("nothing-let-go", "move_jobs.sql", (("    set holder = null\n", "    set holder = r.holder\n"),), "release"),
    # -- what is finished
    twin(
        "forgotten-never",
        "complete.sql",
        (("    where e.keep is not null\n", "    where false\n"),),
        "goes_after or goes_each",
    ),
    twin(
        "looked-at-too-late",
        "complete.sql",
        (("least(g.result_keep, g.keep)", "greatest(g.result_keep, g.keep)"),),
        "goes_after or goes_each",
    ),
    twin(
        "stopped-never-forgotten",
        "move_jobs.sql",
        (("  where r.keep_until is not null\n", "  where false\n"),),
        "was_stopped_goes",
    ),
    twin(
        "decided-never-forgotten",
        "quarantine.sql",
        (("  where d.keep_until is not null;", "  where false;"),),
        "was_stopped_goes or person_has_decided",
    ),
    twin(
        "apart-forgotten",
        "move_jobs.sql",
        (
            ("keep_until = case when k.state_to <> 'quarantined' then p_now", "keep_until = case when true then p_now"),
            ("        ended = nullif(k.state_to, 'quarantined'),", "        ended = 'discarded',"),
        ),
        "person_has_decided",
    ),
    twin(
        "forgotten-too-soon",
        "purge.sql",
        (("      and x.keep_until <= v_now\n", ""),),
        "goes_after or goes_each",
    ),
    twin(
        "looked-at-once",
        "purge.sql",
        (("    and d.until is not null\n", "    and false\n"),),
        "goes_after or goes_each",
    ),
    twin(
        "high-forgotten",
        "purge.sql",
        (("  where o.seq = any (v_held)\n    and o.result_until", "  where o.result_until"),),
        "goes_each",
    ),
    twin(
        "resolved-for-ever",
        "quarantine.sql",
        (("  where d.keep_until is not null", "  where false"),),
        "person_resolved",
    ),
    twin(
        "purge-waits",
        "purge.sql",
        (("v_seqs) for update skip locked", "v_seqs) for update"),),
        "somebody_holds",
        RETENTION,
    ),
    twin(
        "purge-forgets-entries",
        "purge.sql",
        (("  where o.seq = any (v_seqs)\n    and d.until", "  where o.seq = any (v_held)\n    and d.until"),),
        "somebody_holds",
        RETENTION,
    ),
    twin(
        "entries-waited-for",
        "purge.sql",
        (("    limit p_n\n    for update skip locked", "    limit p_n\n    for update"),),
        "two_purges",
        RETENTION,
    ),
    # -- when the keeper looks
    twin(
        "looked-at-long-leases-alone",
        "lookout.sql",
        (
            ("least(min(j.lease_until), v_ends) into", "min(j.lease_until) into"),
            ("least(v_ends, p_now + v_lease / 2, p_now + interval '5 s')", "v_ends"),
        ),
        "short_lease_beside",
    ),
    twin(
        "new-policy-not-looked-at",
        "types.sql",
        (("  update benteng.lookout l set look_at = '-infinity';\n", ""),),
        "shorter_lease_of",
    ),
    twin("clock-believed", "lookout.sql", (("p_now >= v_seen.looked_at and ", ""),), "went_back", LOOKOUT),
    twin("lookout-waits", "lookout.sql", (("for update skip locked", "for update"),), "two_keepers", LOOKOUT),
    twin("idle-asked-always", "lookout.sql", (("    perform set_config(", "    perform concat("),), "what_ran", LANES),
    twin("looked-at-always", "lookout.sql", (("p_now < v_seen.look_at then", "false then"),), "now_and_then", LOOKOUT),
    # -- what a claim reads
    twin(
        "head-walked-twice",
        "turn.sql",
        (("if cardinality(v_types) > 1 then", "if true then"),),
        "read_little",
        BLOAT,
    ),
    twin(
        "looked-again-at-nothing",
        "turn.sql",
        (("exit when v_head < v_page and not v_again;", "exit when false;"),),
        "looks_once",
        COSTS,
    ),
    twin("line-walked-for-each", "turn.sql", (("j.state || '' = 'ready'", "j.state = 'ready'"),), "looks_once", COSTS),
    # -- where lines are read from
    twin(
        "place-kept-for-ever",
        "lanes.sql",
        (("greatest(interval '2 s', p_read * interval '5 us')", "interval '1 year'"),),
        "earlier_place or late",
        LANES,
    ),
    twin(
        "no-tail",
        "ring.sql",
        (("  if p_read > 2000 and not benteng.stands_dead() then", "  if false then"),),
        "dead_once",
        LANES,
    ),
    twin(
        "no-tail-one",
        "enter_one.sql",
        (("  if v_is_quiet then\n    perform benteng.pass", "  if false then\n    perform benteng.pass"),),
        "dead_once",
        LANES,
    ),
    twin(
        "tail-never-quiet",
        "ring.sql",
        (
            (
                "  return not exists (\n    select\n    from generate",
                "  return false and not exists (\n    select\n    from generate",
            ),
        ),
        "rings_again",
        LANES,
    ),
    twin("no-place", "turn.sql", (("    perform benteng.pass_dead(v_types);", "    null;"),), "walked_once", LANES),
    twin("nothing-under-way", "lanes.sql", (("p_now - interval '0.05 s'", "p_now"),), "under_way", LANES),
    twin("no-place-due", "stage.sql", (("if v_read > 2000 or", "if false and"),), "was_due", LANES),
    twin(
        "place-of-tomorrow",
        "lanes.sql",
        (
            ("    and benteng.now() between l.made_at and l.until", ""),
            ("      where benteng.now() between l.made_at and l.until", ""),
        ),
        "went_back",
        LANES,
    ),
    # -- who contends
    twin("taken-not-seen", "claim.sql", (("coalesce(v_taken, false) or ", ""),), "shares_keys"),
    twin("wanted-twice-not-seen", "claim.sql", (("v_flawed or v_repeated or ", "v_flawed or "),), "share_a_key"),
    twin(
        "expired-while-waiting",
        "claim.sql",
        (("coalesce(v_expires < v_chosen.now, false)", "false"),),
        "expires_while",
        ORDER,
    ),
    twin(
        "foreign-row-not-seen",
        "claim.sql",
        (("cardinality(v_held) is distinct from cardinality(v_keys)", "false"),),
        "turn_does_not_wait",
        ORDER,
    ),
    twin(
        "flaw-not-seen",
        "claim.sql",
        (("v_chosen.contended := v_flawed", "v_chosen.contended := false"),),
        "not_started",
    ),
    twin("flaw-not-seen-at-once", "turn.sql", (("is not null as odd", "is null as odd"),), "not_started"),
    twin(
        "resource-not-seen-at-once",
        "turn.sql",
        (("x.resources <> '{}' or benteng.flaw", "benteng.flaw"),),
        "shares_keys",
    ),
    twin(
        "odd-among-many",
        "turn.sql",
        (
            ("c.due_at, c.seq) as tids", "c.due_at, c.seq) filter (where not c.odd) as tids"),
            ("v_again := v_look.odd;", "v_again := false;"),
        ),
        "keeps_its_place",
    ),
    twin("more-than-wanted", "claim.sql", (("v_ids[:p_want]", "v_ids"), ("v_here[:p_want]", "v_here")), "hide_nobody"),
    # -- facts
    *(
        twin(
            f"facts-of-other-{name}",
            "turn.sql",
            (("select distinct j.type", f"select distinct {_on(each for each in ALIKE if each != name)} j.type"),),
            "facts_of_its_own",
            EVIDENCE,
        )
        for name in ALIKE
    ),
    *(
        twin(f"alike-but-for-{name}", "turn.sql", ((f"min(c.{name}) = max(c.{name})", "true"),), "differ_in", EVIDENCE)
        for name in ("type", "actor", "origin")
    ),
    *(
        twin(f"alike-but-for-{name}", "turn.sql", ((f"j.{name} <> '{{}}'", "false"),), "differ_in", EVIDENCE)
        for name in ("artifacts", "targets")
    ),
    twin("facts-asked-for-each", "turn.sql", (("select distinct j.type", "select j.type"),), "ask_once", EVIDENCE),
    # -- what is gathered ahead
    twin(
        "types-gathered-once",
        "pool_types.sql",
        (("types = excluded.types", "types = p.types"),),
        "each_change",
        GATHERED,
    ),
    twin(
        "types-gathered-alone",
        "pool_types.sql",
        (("  lock table benteng.pool_types in share row exclusive mode;\n", ""),),
        "at_once",
        GATHERED,
    ),
    twin("pool-never-empty", "pool_types.sql", (("t.pool = p.pool);", "true);"),), "each_change", GATHERED),
    twin("accepts-all", "turn.sql", (("(v_types <@ p_accepts) is not true", "false"),), "accepts_no_type", GATHERED),
    twin(
        "accepts-null",
        "turn.sql",
        (("(v_types <@ p_accepts) is not true", "not v_types <@ p_accepts"),),
        "accepts_no",
        GATHERED,
    ),
    twin("switch-not-seen", "turn.sql", (("where c.mode <> 'open'),", "where false),"),), "halt or tighten"),
    twin("note-believed", "turn.sql", (("h.compared_at = pg_postmaster_start_time()", "true"),), "no_proof", GATHERED),
    twin(
        "note-not-made",
        "history.sql",
        (("set compared_at = pg_postmaster_start_time()", "set compared_at = h.compared_at"),),
        "keeper_notes",
        GATHERED,
    ),
    twin("facts-without-switches", "facts.sql", (("  if p_switched then", "  if false then"),), "facts_of", EVIDENCE),
    # -- fences
    twin(
        "fence-before-rows",
        "turn.sql",
        (
            (
                "  v_rows    integer;\n",
                (
                    "  v_rows    integer;\n"
                    "  v_early   bigint[] := array(select nextval('benteng.fence') from generate_series(1, 100));\n"
                ),
            ),
            ("nextval('benteng.fence') as fence", "v_early[row_number() over ()] as fence"),
        ),
        "fence_is_drawn",
        ORDER,
    ),
    twin("attempt-not-at-claim", "turn.sql", (("attempts = j.attempts + 1,", "attempts = j.attempts,"),), "spent_at"),
    # -- the lock protocol
    twin(
        "jobs-unsorted",
        "settle.sql",
        (("    order by s.id, s.ordinality\n  ), held", "    order by s.id desc, s.ordinality\n  ), held"),),
        "take_their_jobs",
        ORDER,
    ),
    twin(
        "plain-jobs-unsorted",
        "complete.sql",
        (("      order by d.id, d.ord) a", "      order by d.id desc, d.ord) a"),),
        "take_their_jobs",
        ORDER,
    ),
    twin(
        "clock-before-the-wait",
        "complete.sql",
        (
            ("  v_ords bigint[];\nbegin\n", "  v_ords bigint[];\n  v_now timestamptz := benteng.now();\nbegin\n"),
            ("      benteng.now() as now", "      v_now as now"),
        ),
        "wait_for_its_job",
        ORDER,
    ),
    twin(
        "resources-unsorted",
        "move_jobs.sql",
        (("    order by r.key\n    for update;", "    order by r.key desc\n    for update;"),),
        "take_their_resources",
        ORDER,
    ),
    twin(
        "later-rounds-wait",
        "claim.sql",
        (("for update skip locked) h;", "for update) h;"),),
        "second_round or turn_does_not_wait",
        ORDER,
    ),
    twin(
        "control-read-without-lock",
        "turn.sql",
        (("  lock table benteng.control in row share mode;\n", ""),),
        "tighten_waits",
        ORDER,
    ),
    twin(
        "wake-in-the-same-snapshot",
        "settle.sql",
        (
            ("  v_keys    text[];\n", "  v_keys    text[];\n  v_sleeps  boolean;\n"),
            (
                "  if v_holds then\n",
                "  v_sleeps := exists (select from benteng.job w where w.state = 'blocked');\n  if v_holds then\n",
            ),
            (
                "  if v_keys is not null then\n",
                "  if v_keys is not null and v_sleeps then\n",
            ),
        ),
        "release_finds",
        ORDER,
    ),
    twin(
        "baton-lost-at-park",
        "claim.sql",
        (("p.waits_for <> p.busy_key),", "p.waits_for <> p.busy_key and false),"),),
        "two_keys",
    ),
    twin(
        "baton-dropped",
        "move_jobs.sql",
        (("m.state = 'ready' and m.waits_for is not null) f;", "false) f;"),),
        "baton",
    ),
    # -- idempotency
    twin(
        "read-check-insert",
        "enter.sql",
        (
            (
                '    order by i.operation_key collate "C", i.ordinality\n    on conflict do nothing;\n',
                (
                    "      and not exists (\n        select from benteng.operation o\n"
                    "        where o.key = decode(i.operation_key, 'hex') and not o.freed)\n"
                    '    order by i.operation_key collate "C", i.ordinality;\n'
                ),
            ),
        ),
        "duplicate_waits",
        ORDER,
    ),
    twin(
        "reserved-unsorted",
        "enter.sql",
        (('order by i.operation_key collate "C", i.ordinality', "order by i.operation_key desc, i.ordinality"),),
        "reserve_their_keys",
        ORDER,
    ),
    twin(
        "owners-not-read",
        "enter.sql",
        (("exit when v_reserved = cardinality(p_jobs);", "exit when v_reserved > 0;"),),
        "same_operation_twice",
    ),
    twin(
        "admitted-by-id",
        "enter.sql",
        (("when o.seq = p_seqs[i.ordinality] then", "when o.job_id = i.id then"),),
        "lost_answer_of_admit",
        ANSWERS,
    ),
    twin(
        "depth-of-many-alone",
        "enter.sql",
        (("  if v_repeated or v_full <> '{}' then", "  if v_repeated then"),),
        "full_origin",
    ),
    twin("depth-never-counted", "depth.sql", ((" - d.seq < p_max", " - d.seq < 100000 + p_max"),), "full_origin"),
    twin(
        "depth-always-counted",
        "depth.sql",
        ((" - d.seq < p_max", " - d.seq < 0 * p_max"),),
        "depth_is_counted",
        HOSTILE,
    ),
    twin(
        "full-counted-each-time",
        "depth.sql",
        (("    if exists (\n", "    if false and exists (\n"),),
        "now_and_then",
        HOSTILE,
    ),
    twin(
        "depth-of-everybody",
        "depth.sql",
        (("    v_max := benteng.depth_limit(v_origin);", "    v_max := 100000;"),),
        "room",
    ),
    twin(
        "counts-wait",
        "depth.sql",
        (("v_origin for update skip locked", "v_origin for update"),),
        "nobody_wait",
        HOSTILE,
    ),
    twin("depth-of-the-waiting", "depth.sql", (("j.state = 'running' limit", "false limit"),), "not_ended_counts"),
    twin(
        "depth-without-replays", "replay.sql", (("  perform nextval('benteng.admission');", "--"),), "replay_takes_room"
    ),
    twin("epoch-not-counted", "enter.sql", (("where f.freed) then", "where false) then"),), "next_epoch", ORDER),
    twin("refused-in-silence", "enter.sql", (("  if v_disposals is not null then", "  if false then"),), "is_recorded"),
    twin("id-twice", "enter.sql", (("  if v_repeated or v_full", "  if v_full"),), "same_id_twice"),
    twin(
        "parent-believed",
        "enter.sql",
        (("when p_codes is null and (g.generation <> 0 or g.parent is not null)\n", "when false\n"),),
        "name_a_parent or replay_of_nothing",
        HOSTILE,
    ),
    twin(
        "heir-not-judged",
        "enter.sql",
        (("else coalesce(p_codes[g.ord], g.code)", "else g.code"),),
        "successor_that_is",
    ),
    twin(
        "origin-not-compared",
        "enter.sql",
        (("when o.origin <> p_origins[least(i.ordinality, cardinality(p_origins))] then", "when false then"),),
        "other_origin_is",
    ),
    twin(
        "digest-not-compared",
        "enter.sql",
        (("when o.payload_sha256 <> decode(i.payload_sha256, 'hex') then", "when false then"),),
        "other_digest",
    ),
    twin(
        "resource-not-made",
        "enter.sql",
        (("  if v_needs then", "  if false then"),),
        "resource",
    ),
    twin(
        "keys-unsorted", "judge.sql", (("if v_key <= v_last or", "if v_key = v_last or"),), "keys_are_refused", HOSTILE
    ),
    twin("keys-nested", "judge.sql", (("array_ndims(p_names) <> 1 or ", ""),), "keys_are_refused", HOSTILE),
    # -- the straight way of one job
    twin(
        "one-not-judged",
        "enter_one.sql",
        ((" and benteng.fault(p_job, p_me.name, v_name, v_sha256, v_tier, v_bytes) is null", ""),),
        "each_way",
        ONE,
    ),
    twin("one-unusual", "enter_one.sql", (("coalesce(v_is_usual and ", "coalesce("),), "together", ONE),
    twin("one-held", "enter_one.sql", (("p_job.entry <> 'ready' or ", ""),), "each_way", ONE),
    twin("one-successor", "enter_one.sql", (("or p_job.parent is not null ", ""),), "each_way", ONE),
    twin("one-replayed", "enter_one.sql", (("or p_job.generation <> 0 or", "or"),), "each_way", ONE),
    twin("one-at-once", "enter_one.sql", (("or p_job.available_at <> 0 or", "or"),), "each_way", ONE),
    twin("one-that-never-expires", "enter_one.sql", ((" or p_job.expires_at <> 0", ""),), "each_way", ONE),
    twin("one-without-rule", "enter_one.sql", (("p_job.rule <> '' or ", ""),), "each_way", ONE),
    twin("one-without-reason", "enter_one.sql", (("p_job.reason <> '' or ", ""),), "each_way", ONE),
    twin("one-without-resource", "enter_one.sql", ((" or p_job.resources <> '{}'", ""),), "each_way", ONE),
    twin("one-of-a-freed-key", "enter_one.sql", (("  if v_is_freed then", "  if false then"),), "together", ONE),
    twin("one-never", "enter_one.sql", (("  if not v_is_usual and ", "  if "),), "straight_way", ONE),
    twin("one-rung-always", "enter_one.sql", (("  if v_is_quiet then", "  if true then"),), "does_not_need", COSTS),
    twin(
        "refused-key-read",
        "enter.sql",
        (("on o.key = case when p_codes[i.ordinality] is null then", "on o.key = case when true then"),),
        "each_way",
        ONE,
    ),
    # -- bounds that no worker can move
    twin(
        "attempts-unbounded",
        "settle.sql",
        (
            (
                "k.attempts >= k.attempts_max then 'exhausted'\n        when k.disposition = 'crash'",
                "false then 'exhausted'\n        when k.disposition = 'crash'",
            ),
        ),
        "attempts_are_bounded or new_policy_applies",
    ),
    twin(
        "once-run-again",
        "reclaim.sql",
        (("when t.effect = 'once' then 'uncertain'", "when false then 'uncertain'"),),
        "once_is_uncertain",
    ),
    twin(
        "never-closed",
        "move_jobs.sql",
        (("m.reason = 'uncertain' and t.closes, false)", "false, false)"),),
        "keeps_its_resource_closed",
    ),
    twin(
        "successor-unlisted", "settle.sql", (("when s.type <> all (t.successors)", "when false"),), "successor_that_is"
    ),
    # -- admission
    twin(
        "origin-believed",
        "judge.sql",
        (("when p_job.origin <> p_asks\n", "when false\n"),),
        "foreign_origin",
    ),
    twin("digest-believed", "judge.sql", (("when p_sha256 <> p_job.policy_sha256\n", "when false\n"),), "other_policy"),
    twin(
        "anybody-speaks",
        "judge.sql",
        (("and not exists (select from benteng.speech(", "and false and not exists (select from benteng.speech("),),
        "nobody_speaks",
    ),
    twin("gate-unheard", "admit.sql", (("  if cardinality(p_refusals) > 0 then", "  if false then"),), "gate_refusal"),
    # -- what is not paid for
    twin("rung-always", "enter.sql", (("  if v_quiet <> '{}' then", "  if true then"),), "does_not_need", COSTS),
    twin(
        "refused-always",
        "enter.sql",
        (("  if v_disposals is not null then", "  if true then"),),
        "does_not_need",
        COSTS,
    ),
    twin(
        "looked-at-all-that-is-ready",
        "ring.sql",
        (
            (
                "benteng.last_in_line(t.name)",
                "benteng.job j where j.type = t.name and j.state = 'ready'",
            ),
        ),
        "one_look",
        HINTS,
    ),
    # -- the log
    twin(
        "log-does-not-wait",
        "audit_page.sql",
        (("    exit when pg_snapshot_xmin(pg_current_snapshot()) >= v_xid;\n", "    exit;\n"),),
        "commits_late",
        LOG,
    ),
    twin(
        "bare-digest",
        "audit_row.sql",
        (("benteng.keyed(a.payload_sha256)", "encode(a.payload_sha256, 'hex')"),),
        "digests_are_keyed",
    ),
)


if __name__ == "__main__":
    raise SystemExit(run(TWINS, "Broken twins of the PostgreSQL verbs, and the tests that catch them."))
