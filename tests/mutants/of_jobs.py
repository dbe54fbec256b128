"""Mutants of the jobs on Spark: how the audit judges a log, what a rebuild finds of groups."""

from tests.mutants.mutant import Mutant

FORGED = "tests/spark/test_audit_forged.py"
LEDGER = "spark_jobs/audit/ledger.py"
GROUPS = "spark_jobs/rebuild/group_history.py"
REBUILT = "tests/spark/test_rebuild_groups.py"
ARCHIVE = "spark_jobs/archive"
HOSTILE = "tests/spark/test_archive_hostile.py"
SHUFFLE = "spark_jobs/shuffle.py"
INDEX_ROWS = "spark_jobs/rebuild/index_rows.py"
REBUILD = "tests/spark/test_rebuild.py"
IN_STORES = "tests/spark/test_archive_object_store.py"

PURE = "tests/unit/spark_jobs/test_audit_checkpoint.py"
NIGHTLY = "tests/spark/test_audit_checkpoint.py"

MUTANTS = [
    Mutant(
        "shuffle-leaves-out-segments",
        SHUFFLE,
        "a segment is collected even if nothing refers to it",
        "pa.array([_pack(references.slice(0, 0)), *parts], pa.binary())",
        "pa.array([*([_pack(references.slice(0, 0))] if parts else []), *parts], pa.binary())",
        (REBUILD,),
    ),
    Mutant(
        "shuffle-out-of-order",
        SHUFFLE,
        "the references of a segment are sorted by the segment that they go to before they are cut",
        "{name: column.take(order) for name, column in columns.items()}",
        "dict(columns)",
        (REBUILD,),
    ),
    Mutant(
        "shuffle-to-the-segment-before",
        SHUFFLE,
        "an offset belongs to the segment with the last base that is not above it",
        'np.searchsorted(bases, offsets.astype(np.int64), side="right") - 1',
        'np.searchsorted(bases, offsets.astype(np.int64), side="right") - 2',
        (REBUILD,),
    ),
    Mutant(
        "shuffle-to-another-log",
        SHUFFLE,
        "references stay in the log of their segment",
        "np.maximum(places, 0) + self._firsts[number]",
        "np.maximum(places, 0) + 0 * self._firsts[number]",
        ("tests/spark/test_audit.py",),
    ),
    Mutant(
        "rebuild-ended-timers-wait",
        INDEX_ROWS,
        "a timer that was ended does not wait in the rebuilt index",
        'timers.compress(~np.isin(timers["offset"], ended))',
        "timers.compress(np.ones(len(timers), bool))",
        (REBUILD,),
    ),
    Mutant(
        "rebuild-first-mark-wins",
        INDEX_ROWS,
        "the last record of a message is the one that its root points to",
        "order = np.lexsort((targets, roots))",
        "order = np.lexsort((-targets, roots))",
        (REBUILD,),
    ),
    Mutant(
        "rebuild-queue-numbering",
        INDEX_ROWS,
        "the messages of a segment continue the numbering of their queue",
        "plan.topics[name], queue), plan.firsts[name, queue]",
        "plan.topics[name], queue), 0 * plan.firsts[name, queue]",
        (REBUILD,),
    ),
    Mutant(
        "checkpoint-strange-unseen",
        LEDGER,
        "a new record that ends no open timer makes the audit judge the whole log",
        "self._strange += int(np.count_nonzero(earlier & ~gone))",
        "self._strange += 0",
        (PURE,),
    ),
    Mutant(
        "checkpoint-dropped-blamed-again",
        LEDGER,
        "of two records that end a dropped timer an earlier one is not blamed again",
        '        again &= ends["by"][1:] >= self._bounds.since\n',
        "",
        (NIGHTLY,),
    ),
    Mutant(
        "checkpoint-digest-of-numbers",
        "spark_jobs/audit/plan.py",
        "topics count by name in the digest of a segment",
        'found.update("\\n".join(table.topics[number] for number in used.tolist()).encode())',
        "pass",
        (PURE,),
    ),
    Mutant(
        "checkpoint-tail-unchecked",
        "spark_jobs/audit/plan.py",
        "records that differ from those that were judged are noticed",
        "if endings[segment].digest_before != earlier.last_digest:",
        "if not earlier.last_digest:",
        (NIGHTLY,),
    ),
    Mutant(
        "checkpoint-overdue-asleep",
        "spark_jobs/audit/plan.py",
        "timers that were judged before are read when they are overdue",
        "number: piece.open.least_due_ms < self.logs[piece.log].bounds.last_ms - OVERDUE_MS",
        "number: False",
        (NIGHTLY,),
    ),
    Mutant(
        "checkpoint-pending-not-fewer",
        "spark_jobs/audit/tallies.py",
        "a timer that was open at the last audit and has ended is pending no more",
        'fewer.set_column(place, "count", pc.negate(fewer["count"])),',
        "fewer.slice(0, 0),",
        (NIGHTLY,),
    ),
    Mutant(
        "checkpoint-files-first",
        "spark_jobs/audit/checkpoint.py",
        "files of the old document go only after the new one is in place",
        """        write_atomically(join(self.url, DOCUMENT), encode_document(document))
        self.document = document
        self._tidy(document.paths())
""",
        """        self._tidy(document.paths())
        write_atomically(join(self.url, DOCUMENT), encode_document(document))
        self.document = document
""",
        (PURE,),
    ),
    Mutant(
        "ledger-early-unseen",
        LEDGER,
        "a delivery before its time is a finding",
        'message & (rows["store_ms"] < rows["due_ms"])',
        'message & (rows["store_ms"] + 1 < rows["due_ms"])',
        (FORGED,),
    ),
    Mutant(
        "ledger-other-queue-unseen",
        LEDGER,
        "an end in another queue than its timer's is a finding",
        ' | (ends["queue"] != timers["queue"])',
        "",
        (FORGED,),
    ),
    Mutant(
        "ledger-lease-of-a-message",
        LEDGER,
        "a lease that ends the timer of a message is a finding",
        '        topics |= (ends["flags"] ^ timers["flags"]) & FLAG_LEASE != 0\n',
        "",
        (FORGED,),
    ),
    Mutant(
        "ledger-twice-by-the-last",
        LEDGER,
        "the first end of a timer counts, and every other is a finding",
        '        order = np.lexsort((ends["by"], places))',
        '        order = np.lexsort((-ends["by"], places))',
        (FORGED,),
    ),
    Mutant(
        "ledger-dropped-twice-unseen",
        LEDGER,
        "a message that was carried on twice from a dropped segment is a finding",
        '_DROPPED = {OF_DROPPED_TIMER: "origin", OF_DROPPED_ROOT: "root"}',
        '_DROPPED = {OF_DROPPED_TIMER: "origin"}',
        (FORGED,),
    ),
    Mutant(
        "ledger-damage-blamed",
        LEDGER,
        "what damage hides is not blamed on a record",
        "missing = ~there & ~damaged",
        "missing = ~there",
        (FORGED,),
    ),
    Mutant(
        "ledger-moved-is-rescheduled",
        LEDGER,
        "a timer that retention moved was not rescheduled by a client",
        "np.where(moved, MOVED, RESCHEDULED)",
        "np.where(moved, RESCHEDULED, MOVED)",
        ("tests/spark/test_audit.py",),
    ),
    Mutant(
        "ledger-moved-due-unseen",
        LEDGER,
        "a timer that was moved keeps its due time",
        '        same = moved | (ends["kind"] == Kind.CANCEL)',
        '        same = ends["kind"] == Kind.CANCEL',
        (FORGED,),
    ),
    Mutant(
        "rebuild-redriven-passes",
        GROUPS,
        "a message that was taken back from the dead letters is in no queue of the topic",
        ' & (rows["queue"] != DEAD_QUEUE)',
        "",
        (REBUILT,),
    ),
    Mutant(
        "rebuild-retry-passes-earlier",
        GROUPS,
        "a retry says nothing of the messages before its own",
        " | (rows[ATTEMPT] > 0)",
        "",
        (REBUILT,),
    ),
    Mutant(
        "rebuild-touching",
        GROUPS,
        "stretches that touch are one",
        "np.lexsort((-steps, edges, keys))",
        "np.lexsort((steps, edges, keys))",
        (REBUILT,),
    ),
    Mutant(
        "rebuild-rewound-keeps",
        GROUPS,
        "a group that was rewound has forgotten what was before",
        "max(group.since, begin)",
        "begin",
        (REBUILT,),
    ),
    Mutant(
        "rebuild-late-end-counts",
        GROUPS,
        "an end that another retry preceded ends nothing",
        '"next_root is null or end < next_root"',
        '"next_root is null or end > 0"',
        (REBUILT,),
    ),
    Mutant(
        "rebuild-manifest-item-stays",
        GROUPS,
        "an item of the manifest is gone when it has ended",
        "    for row in held.join(ends, item).collect():",
        "    for row in held.join(ends, item).limit(0).collect():",
        (REBUILT,),
    ),
    Mutant(
        "archive-commit-without-lock",
        f"{ARCHIVE}/chunk_writer.py",
        "a task whose run has lost the lock commits nothing",
        "        self._run.confirm()\n        path = manifest_path(",
        "        path = manifest_path(",
        (IN_STORES,),
    ),
    Mutant(
        "archive-put-over-another",
        "spark_jobs/storage.py",
        "a lock and a manifest are created only if there is none",
        'fs.pipe_file(path, data, mode="create")',
        "fs.pipe_file(path, data)",
        (IN_STORES,),
    ),
    Mutant(
        "archive-unnamed-unseen",
        f"{ARCHIVE}/check.py",
        "verify names files that no manifest names",
        "problems = unnamed_files(store) + overlaps(store, log_ids)",
        "problems = overlaps(store, log_ids)",
        ("tests/spark/test_archive_runs.py",),
    ),
    Mutant(
        "archive-hard-link",
        f"{ARCHIVE}/store.py",
        "a file with a second name is refused",
        "if found.st_nlink > 1:",
        "if found.st_nlink > 2:",
        (HOSTILE,),
    ),
    Mutant(
        "archive-rows-twice",
        f"{ARCHIVE}/store.py",
        "two chunks with the same offsets are refused",
        "if other.base < one.end:",
        "if other.end < one.end:",
        (HOSTILE,),
    ),
    Mutant(
        "archive-other-topics",
        f"{ARCHIVE}/part.py",
        "a reader of one topic gets its rows only",
        'batch = batch.filter(pa.compute.equal(batch["topic"], topic))',
        "pass",
        ("tests/spark/test_archive_source.py",),
    ),
]
