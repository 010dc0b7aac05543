"""Break the store on purpose, one guard at a time, and see that a test of the suite fails for each.

A broken twin is a copy of `src` with one text replaced; only the tests that ought to notice run against it. A twin that
survives means that a promise has no test. A text that is not found means that the code moved: move the twin with it.
"""

from __future__ import annotations

from scripts.breaking import Twin, run

SUITE = "tests/store/test_conformance_sqlite.py"
STORE = "benteng/store/sqlite"
COSTS = "tests/store/test_sqlite_costs.py"
FACTS = "tests/store/test_sqlite_facts.py"
HINTS = "tests/store/test_sqlite_hints.py"


def twin(name: str, file: str, old: str, new: str, tests: str, suite: str = SUITE) -> Twin:
    """Return the twin in which one text is replaced."""
    return Twin(name, file, ((old, new),), tests, suite)


TWINS = (
    # -- fencing
    twin(
        "fence-not-compared",
        f"{STORE}/settle.py",
        "(proof.fence, proof.token) == (row.fence, row.token)",
        "proof.token == row.token",
        "forged",
    ),
    twin(
        "token-not-compared",
        f"{STORE}/settle.py",
        "(proof.fence, proof.token) == (row.fence, row.token)",
        "proof.fence == row.fence",
        "forged or old_fence",
    ),
    twin(
        "payload-not-compared",
        f"{STORE}/claim.py",
        "if sha256_hex(job.payload) != job.payload_sha256:",
        "if False:",
        "another_digest",
    ),
    # -- what is known of types, switches and access
    twin(
        "facts-for-ever",
        f"{STORE}/facts.py",
        "version != self._version or ",
        "self._version < 0 or ",
        "another_has",
        FACTS,
    ),
    twin(
        "facts-of-another-connection",
        f"{STORE}/store.py",
        "self._connection, self._facts = connection, Facts(self.facet)",
        "self._connection = connection",
        "opened_again",
        FACTS,
    ),
    twin("facts-of-a-writer", f"{STORE}/facts.py", "= keeps(facet)", "= True", "who_may_write", FACTS),
    twin("pool-not-compared", f"{STORE}/queries/settle.sql", "\n  and j.pool = :pool;", ";", "forged"),
    twin("extend-fence", f"{STORE}/queries/extend.sql", "  and fence = :fence\n", "", "forged_proofs"),
    twin("extend-token", f"{STORE}/queries/extend.sql", "  and token = :token\n", "", "forged_proofs"),
    twin("extend-after-end", f"{STORE}/queries/extend.sql", "  and lease_until > :now", "", "after_the_lease_end"),
    twin(
        "stale-unrecorded",
        f"{STORE}/settle.py",
        "            _record_stale(tx, asked)\n",
        "            pass\n",
        "stale_settlement_is",
    ),
    twin(
        "stopped-never-forgotten",
        f"{STORE}/moves.py",
        "None if keep is None or not ended else tx.after(keep)",
        "None",
        "was_stopped_goes",
    ),
    twin(
        "token-weak",
        f"{STORE}/claim.py",
        "secrets.token_hex(TOKEN_BYTES * len(ready))",
        '"0" * TOKEN_CHARS * len(ready)',
        "tokens_are_never",
    ),
    twin(
        "numbers-come-again",
        f"{STORE}/store.py",
        '"seq": self._seq}',
        '"seq": self._seq - bool(self._seq)}',
        "nobody_elses",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "text-not-looked-at",
        "benteng/audit.py",
        "record if names_plain and _is_plain(summary, SUMMARY_BYTES_MAX) else bounded(record)",
        "record",
        "body_like",
        "tests/test_audit.py",
    ),
    twin(
        "undone-and-said",
        f"{STORE}/store.py",
        "            del self._entries[self._said :]\n",
        "",
        "other_terms",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "lease-of-another-type",
        f"{STORE}/claim.py",
        "by_terms.setdefault(each.terms, [])",
        "by_terms.setdefault(ready[0].terms, [])",
        "other_terms",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "ended-twice-in-a-batch",
        f"{STORE}/settle.py",
        "row.seq: row for row in reversed(rows)",
        "row.place: row for row in rows",
        "named_twice",
        "tests/store/test_sqlite_rows.py",
    ),
    # -- sets
    twin(
        "damage-stops-the-set",
        f"{STORE}/apart.py",
        "return [*apart_all(tx, act, items[:half], alone), *apart_all(tx, act, items[half:], alone)]",
        "return []",
        "bad_row or without_its_operation",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "set-half-started",
        f"{STORE}/claim.py",
        'if tx.run(_CLAIM["start"], asked) != len(ready):',
        'if tx.run(_CLAIM["start"], asked) < 0:',
        "bad_row",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "set-half-completed",
        f"{STORE}/moves.py",
        "    _expect(len(completions), kept)\n",
        "    _expect(kept, kept)\n",
        "without_its_operation",
        "tests/store/test_sqlite_rows.py",
    ),
    # -- costs
    twin(
        "set-one-by-one",
        f"{STORE}/apart.py",
        "    answers, damage = ",
        "    if items:\n        return [answer for item in items for answer in alone(item)]\n    answers, damage = ",
        "costs_no_more and low-50",
        COSTS,
    ),
    twin(
        "row-written-twice",
        f"{STORE}/moves.py",
        "    kept = tx.many(",
        "    for each in completions:\n"
        '        tx.run("update operation set fence = fence where seq = :seq", {"seq": each.row["seq"]})\n'
        "    kept = tx.many(",
        "costs_no_more and low-50",
        COSTS,
    ),
    twin(
        "admitted-one-by-one",
        f"{STORE}/admission.py",
        "    if not entrances:\n",
        "    if entrances[1:]:\n        return [enter(tx, [each])[0] for each in entrances]\n    if not entrances:\n",
        "costs_no_more and low-50",
        COSTS,
    ),
    twin(
        "index-of-a-key-written-again",
        f"{STORE}/queries/leave.sql",
        "set state = 'completed', ended = 'completed'",
        "set state = 'completed', freed = 0, ended = 'completed'",
        "costs_no_more and low-1",
        COSTS,
    ),
    # -- hints
    twin(
        "hint-not-sent", f"{STORE}/store.py", "            hints.ring(self.place.path, pools)\n", "", "many_jobs", HINTS
    ),
    twin("hint-under-load", f"{STORE}/queries/hint.sql", ") between 1 and :made", ") >= 1", "nobody_is_told", HINTS),
    twin(
        "hint-before-commit",
        f"{STORE}/store.py",
        '            self._check_file()\n            connection.execute("commit")\n',
        "            hints.ring(self.place.path, pools)\n            self._check_file()\n"
        '            connection.execute("commit")\n',
        "not_committed",
        HINTS,
    ),
    twin("hint-to-all-pools", f"{STORE}/hints.py", 'entry.name.partition("-")[0] in ours', "entry.name", "own_pool"),
    twin(
        "hint-past-strangers",
        f"{STORE}/hints.py",
        " or stat.S_IMODE(found.st_mode) & 0o077",
        "",
        "strange",
        HINTS,
    ),
    twin("hint-of-the-dead", f"{STORE}/hints.py", "except ConnectionRefusedError:", "except EOFError:", "dead", HINTS),
    twin("hint-lost-for-good", f"{STORE}/consumer.py", "not self._ear.is_there()", "False", "deleted", HINTS),
    # -- leases and counts
    twin("attempt-not-at-claim", f"{STORE}/queries/claim.sql", "attempts = attempts + 1, ", "", "spent_at_the_claim"),
    twin("reclaim-by-nothing", f"{STORE}/queries/reclaim.sql", "  and lease_until <= :now\n", "", "lease_that_runs"),
    twin("crash-not-counted", f"{STORE}/moves.py", "crashes=counts.crashes + 1", "crashes=counts.crashes", "poison"),
    twin(
        "attempts-unbounded",
        f"{STORE}/settle.py",
        "    spent = counts_of(row)\n    if spent.attempts >= limits.attempts_max:",
        "    spent = counts_of(row)\n    if spent.attempts < 0:",
        "new_policy_applies",
    ),
    twin("snoozes-unbounded", f"{STORE}/settle.py", "spent.snoozes >= limits.snoozes_max", "False", "snoozes_are"),
    twin("handbacks-free", f"{STORE}/settle.py", "spent.handbacks < limits.handbacks_max", "True", "hand_backs_are"),
    twin(
        "delay-believed",
        f"{STORE}/settle.py",
        "max(low, min(seconds, high))",
        "max(0.0, min(seconds, 1e9))",
        "backoff_is",
    ),
    twin("once-run-again", f"{STORE}/keeper.py", "policy.effect is Effect.ONCE", "False", "once_is_uncertain"),
    twin("cancel-forgotten", f"{STORE}/settle.py", 'row["cancel_asked"] and', "False and", "cancel_wins"),
    twin(
        "clock-goes-back",
        f"{STORE}/store.py",
        'max(ledger.place.clock(), row["now"])',
        "ledger.place.clock()",
        "going_back",
    ),
    # -- resources
    twin(
        "first-key-only",
        f"{STORE}/claim.py",
        "resources.busy(tx, ready.job.refs.resources)",
        "None",
        "all_or_none or excl",
    ),
    twin(
        "no-wake",
        f"{STORE}/resources.py",
        '    wake(tx, [row["key"] for row in tx.changed(_RESOURCE["release"], {"job_ids": as_array(job_ids)})])\n',
        '    tx.changed(_RESOURCE["release"], {"job_ids": as_array(job_ids)})\n',
        "wakes_the_next",
    ),
    twin(
        "released-twice",
        f"{STORE}/resources.py",
        'tx.changed(_RESOURCE["release"]',
        'tx.all(_RESOURCE["release"]',
        "garbled_key",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "baton-dropped",
        f"{STORE}/resources.py",
        'elif row["state"] == State.READY and row["waits_for"]:',
        "elif False:",
        "baton",
    ),
    twin(
        "baton-lost-at-park",
        f"{STORE}/resources.py",
        'if row["waits_for"] and row["waits_for"] != key:',
        "if False:",
        "two_keys",
    ),
    twin(
        "never-closed", f"{STORE}/moves.py", 'policy_of(tx, row["type"]).closes', "False", "keeps_its_resource_closed"
    ),
    twin(
        "resource-fence-old",
        f"{STORE}/queries/resource.sql",
        "set holder = :job_id, fence = :fence",
        "set holder = :job_id, fence = :fence - 1",
        "fence_rises_per",
    ),
    # -- operations
    twin(
        "digest-not-compared",
        f"{STORE}/admission.py",
        'owner["payload_sha256"] != job.payload_sha256',
        "False",
        "other_digest",
    ),
    twin(
        "origin-not-compared", f"{STORE}/admission.py", 'owner["origin"] != entrance.origin', "False", "other_origin_is"
    ),
    twin(
        "freed-after-start",
        "benteng/lifecycle.py",
        "OperationState.KEPT if started else OperationState.FREED",
        "OperationState.FREED",
        "same_digest",
    ),
    twin(
        "epoch-not-counted",
        f"{STORE}/queries/admit.sql",
        "1 + coalesce((",
        "1 + 0 * coalesce((",
        "epoch",
    ),
    # -- sets on their way in
    twin(
        "set-not-looked-at",
        f"{STORE}/admission.py",
        "        self._owners[_operation(entrance)] = columns | {",
        "        _ = columns | {",
        "same_operation_twice",
    ),
    twin(
        "repeated-id-looked-up-only",
        f"{STORE}/admission.py",
        "_REPEATED if at in repeated else ",
        "",
        "same_id_twice_in_a_batch_enters",
    ),
    twin(
        "depth-of-the-set-not-counted",
        f"{STORE}/admission.py",
        "if len(self.entering) >= self._room:",
        "if self._room <= 0:",
        "within_a_call",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "depth-without-what-waits",
        f"{STORE}/queries/admit.sql",
        "     + (select count(*) from job where state in ('scheduled', 'blocked', 'held') and origin = :origin)\n",
        "",
        "not_ended_counts",
    ),
    twin(
        "full-counted-each-time",
        f"{STORE}/admission.py",
        "not (is_counted and _is_fresh(tx, known))",
        "True",
        "now_and_then",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "depth-without-replays",
        f"{STORE}/queries/quarantine.sql",
        "set jobs = jobs + 1",
        "set jobs = jobs",
        "counted_before",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "count-of-numbers-that-come-again",
        f"{STORE}/admission.py",
        'if is_counted and last < known["seq"]:',
        "if False:",
        "never_drawn",
        "tests/store/test_sqlite_rows.py",
    ),
    twin(
        "depth-of-everybody",
        f"{STORE}/queries/admit.sql",
        "coalesce(d.jobs_max, :default)",
        ":default",
        "full_origin",
    ),
    twin(
        "operation-outlived-by-its-result",
        f"{STORE}/settle.py",
        "            result_until = min(result_until, keep_until)\n",
        "            pass\n",
        "goes_in_time",
    ),
    # -- admission and switches
    twin("origin-believed", f"{STORE}/entrance.py", "if job.origin != entrance.origin:", "if False:", "foreign_origin"),
    twin("policy-not-compared", f"{STORE}/entrance.py", "job.policy_sha256 != fact.sha256", "False", "other_policy"),
    twin("halt-lets-in", f"{STORE}/entrance.py", "over.mode is ControlMode.HALT", "False", "halt_refuses"),
    twin(
        "halt-lets-start",
        f"{STORE}/claim.py",
        "halted = set(control.halted(tx, ControlScope.TYPE))",
        "halted = set()",
        "kill_switch or tighten_against",
    ),
    twin(
        "tighten-loosens", f"{STORE}/switches.py", "asked.mode.rank < _mode(tx, asked).rank", "False", "never_loosens"
    ),
    twin(
        "accepts-ignored",
        f"{STORE}/claim.py",
        "set(claimant.accepts) - halted",
        '{*claimant.accepts, "t.low@2"} - halted',
        "only_accepted",
    ),
    twin("order-by-age", f"{STORE}/queries/claim.sql", "order by priority, due_at, seq", "order by seq", "order_is"),
    # -- successors
    twin("successor-unlisted", f"{STORE}/settle.py", "job.type not in policy.successors", "False", "successor_that_is"),
    twin("successor-tier", f"{STORE}/settle.py", "job.tier.rank > policy.tier.rank", "False", "successor_that_is"),
    twin("successor-actor", f"{STORE}/settle.py", "job.actor != row.actor", "False", "successor_that_is"),
    # -- audit and atomicity
    twin(
        "wake-unrecorded",
        f"{STORE}/resources.py",
        "    tx.note(Event.WOKEN, row",
        "    tx.memo.get(()) or (lambda *a, **k: None)(Event.WOKEN, row",
        "wakes_the_next",
    ),
    twin(
        "one-salt",
        f"{STORE}/audit.py",
        "token_bytes(SALT_BYTES * len(entries))",
        "bytes(SALT_BYTES * len(entries))",
        "salted",
    ),
    twin(
        "bare-digest",
        f"{STORE}/audit.py",
        "digest(audit_key, job.payload_sha256)",
        "job.payload_sha256",
        "digests_are_keyed",
    ),
    twin(
        "audit-after-commit",
        f"{STORE}/store.py",
        "            pools = tx.finish(changes)\n            self._check_file()\n",
        '            connection.execute("commit")\n            connection.execute("begin immediate")\n'
        "            pools = tx.finish(changes)\n            self._check_file()\n",
        "killed and settle-end",
    ),
    twin(
        "claim-in-two",
        f"{STORE}/claim.py",
        "        grants.extend(_tried(tx, met, claimant, types))\n",
        "        grants.extend(_tried(tx, met, claimant, types))\n"
        '        tx._connection.execute("commit"), tx._connection.execute("begin immediate")\n',
        "killed and claim",
    ),
    # -- the pure core
    twin(
        "claim-of-scheduled",
        "benteng/lifecycle.py",
        "Event.STAGE: State.READY,",
        "Event.STAGE: State.READY,\n        Event.CLAIM: State.RUNNING,",
        "running_is",
        "tests/test_lifecycle.py",
    ),
    twin(
        "refused-keeps-key",
        "benteng/lifecycle.py",
        "{QuarantineReason.REFUSED, QuarantineReason.EXPIRED}",
        "{QuarantineReason.EXPIRED}",
        "never_started",
        "tests/test_lifecycle.py",
    ),
    twin(
        "verdict-is-true", "benteng/verdict.py", "raise TypeError(msg)", "return True", "truth", "tests/test_verdict.py"
    ),
    twin(
        "one-attempt-more",
        "benteng/decide.py",
        "if attempt.number >= policy.limits.attempts_max:",
        "if attempt.number > policy.limits.attempts_max:",
        "last_attempt",
        "tests/test_decide.py",
    ),
    twin(
        "one-crash-more",
        "benteng/decide.py",
        "attempt.crashes + 1 >=",
        "attempt.crashes >=",
        "crash_is",
        "tests/test_decide.py",
    ),
    twin(
        "once-retried",
        "benteng/decide.py",
        "policy.effect is Effect.ONCE and not outcome.explicit",
        "False",
        "once",
        "tests/test_decide.py",
    ),
    twin(
        "once-crash-retried",
        "benteng/decide.py",
        "    if policy.effect is Effect.ONCE:\n        return _quarantine(QuarantineReason.UNCERTAIN, outcome.how)\n",
        "",
        "unclear",
        "tests/test_decide.py",
    ),
    twin(
        "once-drain-retried",
        "benteng/decide.py",
        'return _quarantine(QuarantineReason.UNCERTAIN, "killed by a drain")',
        'return Decision(Disposition.INTERRUPT, error="killed by a drain")',
        "unclear",
        "tests/test_decide.py",
    ),
    twin("no-jitter", "benteng/decide.py", "rng.uniform(0.0, ceiling)", "ceiling", "spread", "tests/test_decide.py"),
    twin(
        "any-retry-explicit",
        "benteng/outcome.py",
        "return Transient(text)",
        "return Transient(text, explicit=True)",
        "unknown",
        "tests/test_outcome.py",
    ),
    twin(
        "defaults-first", "benteng/outcome.py", "(table, ERRORS)", "(ERRORS, table)", "table", "tests/test_outcome.py"
    ),
    twin(
        "base-first",
        "benteng/outcome.py",
        "in raised.__mro__",
        "in reversed(raised.__mro__)",
        "derived",
        "tests/test_outcome.py",
    ),
    twin(
        "major-in-key",
        "benteng/job.py",
        'type_name.partition("@")[0]',
        "type_name",
        "major or golden",
        "tests/test_job.py",
    ),
    twin("key-by-order", "benteng/job.py", ', order="deterministic"', "", "order", "tests/test_job.py"),
    twin("type-name-loose", "benteng/policy.py", "@[1-9][0-9]{0,3}", "@[0-9]*", "type_name", "tests/test_job.py"),
    twin(
        "digest-unsorted",
        "benteng/policy.py",
        'msgspec.json.encode(self, order="sorted")',
        "msgspec.json.encode(self)",
        "digest",
        "tests/test_policy.py",
    ),
    twin(
        "floor-attempts",
        "benteng/policy.py",
        "Tier.HIGH: 5}",
        "Tier.HIGH: 25}",
        "floor",
        "tests/test_policy.py",
    ),
    twin(
        "floor-once",
        "benteng/policy.py",
        "p.tier is not Tier.LOW or p.effect is Effect.REPEATABLE",
        "True",
        "floor",
        "tests/test_policy.py",
    ),
    twin("lock-size", "benteng/policy.py", "len(data) > LOCK_BYTES_MAX", "False", "bad_lock", "tests/test_policy.py"),
    # -- many callers, one commit
    twin(
        "answers-mixed-up",
        "benteng/flusher.py",
        "zip(batch, said, strict=True)",
        "zip(batch, list(said)[::-1], strict=True)",
        "own_caller",
        "tests/test_flusher.py",
    ),
    twin(
        "batch-unbounded",
        "benteng/flusher.py",
        "min(self._batch_max, len(self._queue))",
        "len(self._queue)",
        "batch_is_bounded",
        "tests/test_flusher.py",
    ),
    twin(
        "queue-unbounded",
        "benteng/flusher.py",
        "len(self._queue) >= self._waiting_max",
        "False",
        "told_busy",
        "tests/test_flusher.py",
    ),
    twin(
        "cancelled-asked", "benteng/flusher.py", "if not waiter.is_gone]", "]", "takes_nobody", "tests/test_flusher.py"
    ),
    twin(
        "failure-swallowed",
        "benteng/flusher.py",
        "said = [error] * len(batch)",
        "said = [error, *[None] * (len(batch) - 1)]",
        "reaches_its_batch",
        "tests/test_flusher.py",
    ),
    twin(
        "interrupted-waiter-asked",
        "benteng/flusher.py",
        "self._queue.remove(waiter)",
        "pass",
        "interrupted_waiter",
        "tests/test_flusher.py",
    ),
    twin(
        "close-without-waiting",
        "benteng/flusher.py",
        "while self._led:",
        "while False:",
        "close_waits",
        "tests/test_flusher.py",
    ),
    twin(
        "classes-together",
        "benteng/gate.py",
        "if said.durability is wanted}",
        "}",
        "stops_no_other",
        "tests/test_aio.py",
    ),
    twin(
        "keyless-stops-all",
        "benteng/gate.py",
        "        except KeyringError as error:\n            return error\n",
        "        finally:\n            pass\n",
        "stops_no_other",
        "tests/test_aio.py",
    ),
    twin(
        "loaders-in-the-loop",
        "benteng/task.py",
        "return bool(self.loaders) and bool(",
        "return False and bool(",
        "loaders_do_not",
        "tests/test_aio.py",
    ),
    twin(
        "fork-shares",
        "benteng/app.py",
        "os.register_at_fork(after_in_child=_abandon_all)\n",
        "",
        "both_sides",
        "tests/test_aio.py",
    ),
    twin(
        "one-commit-for-all",
        "benteng/gate.py",
        "range(first, len(specs), PART_MAX)",
        "range(0)",
        "beyond_one_commit",
        "tests/test_aio.py",
    ),
)


if __name__ == "__main__":
    raise SystemExit(run(TWINS, "Broken twins of the store, and the tests that catch them."))
