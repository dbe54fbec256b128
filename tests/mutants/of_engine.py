"""Mutants of the engine: the wheel, firing, indexing, retention, recovery, sending and recalling."""

from tests.mutants.mutant import Mutant

HELD = "tests/integration/test_held.py"
DEDUP = "tests/integration/test_dedup.py"
CARRIED = "tests/crash/test_crash_carried_keys.py"
RECALLED = "tests/integration/test_dedup_recalled.py"
RESERVED = "tests/integration/test_reserved_names.py"
FAILURE = "tests/integration/test_failure.py"
RETENTION = "tests/integration/test_retention.py"
RECOVERY = "tests/unit/test_recovery.py"
INDEX = "tests/integration/test_index.py"
CONGESTION = "tests/integration/test_congestion.py"
TOKENS = "tests/e2e/test_security_tokens.py"
NEAR = "tests/unit/test_near.py"
WHEEL = "tests/unit/test_wheel.py"

MUTANTS = [
    # ------------------------------------------------------------------ the wheel
    Mutant(
        "wheel-drop-incomplete",
        "timerwheel/wheel/slot_table.py",
        "a second slot is not dropped while something above may still come down to it",
        "        if start_ms >= until:\n            continue\n        found",
        "        found",
        (
            f"{WHEEL}::test_a_second_slot_that_more_can_come_down_to_is_not_dropped_though_its_counts_are_even",
        ),
    ),
    Mutant(
        "wheel-load-incomplete",
        "timerwheel/wheel/slot_table.py",
        "a second slot is loaded only when it is complete",
        "            until = min(until, first)\n    return until",
        "            until = max(until, first)\n    return until",
        (WHEEL,),
    ),
    Mutant(
        "geometry-step-stands-still",
        "timerwheel/wheel/geometry.py",
        "each step of a cascade moves a slot or a horizon",
        "    if first is not None and first <= at:",
        "    if first is not None and first < at:",
        (
            "tests/unit/test_geometry.py::test_a_slot_that_begins_at_its_horizon_is_cascaded_and_never_waited_for",
        ),
    ),
    Mutant(
        "near-step-back-unnoticed",
        "timerwheel/wheel/near.py",
        "what was overdue is not after the clock was stepped back",
        "        if self._overdue.count and now_ms < self._overdue.last_ms:",
        "        if False:",
        (f"{NEAR}::test_clock_that_steps_back_puts_off_what_was_overdue",),
    ),
    Mutant(
        "near-put-back-twice",
        "timerwheel/wheel/near.py",
        "a timer that is put back is there once",
        "            self._gone.discard(offset)\n        elif",
        "            self._gone.discard(offset)\n            self.add(entry)\n        elif",
        (NEAR,),
    ),
    # ------------------------------------------------------------------ firing
    Mutant(
        "firing-overtakes",
        "timerwheel/runtime/firing.py",
        "no batch overtakes one that found no space",
        "            if failures != self.retries:",
        "            if False:",
        (f"{HELD}::test_no_batch_overtakes_one_that_found_no_space",),
    ),
    Mutant(
        "firing-let-go-before-the-commit",
        "timerwheel/runtime/firing.py",
        "a timer is in flight until its delivery is stored or refused",
        "            if stored is not None:\n                await stored",
        "            self._let_go(entries, outcome)\n"
        "            if stored is not None:\n                await stored",
        (f"{HELD}::test_a_recall_waits_for_the_firing_that_is_being_stored",),
    ),
    Mutant(
        "firing-refused-forgotten",
        "timerwheel/runtime/firing.py",
        "what cannot be written stays pending",
        "            self._return(sent, early=early)\n            self._hold(error, len(sent))",
        "            self._hold(error, len(sent))",
        (f"{HELD}::test_a_recall_waits_for_the_firing_that_is_being_stored",),
    ),
    Mutant(
        "firing-damaged-not-set-aside",
        "timerwheel/runtime/firing.py",
        "a timer that cannot be read is set aside and told",
        "        self.set_aside[offset] = SetAsideInfo(",
        "        _ = SetAsideInfo(",
        (FAILURE,),
    ),
    Mutant(
        "firing-early-due-time",
        "timerwheel/runtime/firing.py",
        "a message that fires before its time is due at once",
        'np.minimum(timers["due_ms"], now_ms) if early else timers["due_ms"]',
        'timers["due_ms"]',
        ("tests/integration/test_semantics.py",),
    ),
    # ------------------------------------------------------------------ the index
    Mutant(
        "view-unseal-keys",
        "timerwheel/state/memtable.py",
        "a key that was taken during a failed index commit stays taken",
        "    joined.keys = first.keys | second.keys\n",
        "    joined.keys = first.keys\n",
        (f"{HELD}::test_a_key_that_was_taken_during_a_failed_index_commit_stays_taken",),
    ),
    Mutant(
        "view-unseal-marks",
        "timerwheel/state/memtable.py",
        "the newest record speaks for its message after a failed index commit",
        "    joined.marks = first.marks | second.marks\n",
        "    joined.marks = second.marks | first.marks\n",
        ("tests/unit/test_view.py::test_newest_mark_wins_over_the_sealed_one",),
    ),
    Mutant(
        "indexer-commit-unsynced",
        "timerwheel/runtime/indexer.py",
        "the index is never ahead of the durable log",
        "            await self._threads.log(self._log.sync)\n            with self._measures.index_commit_s",
        "            with self._measures.index_commit_s",
        (f"{HELD}::test_an_index_commit_begins_with_a_sync_of_the_log",),
    ),
    Mutant(
        "indexer-loads-in-flight",
        "timerwheel/runtime/indexer.py",
        "a timer that is being recalled is not loaded a second time",
        "        if self._in_flight and len(entries):",
        "        if False:",
        (f"{HELD}::test_a_timer_whose_recall_is_being_stored_is_not_loaded_a_second_time",),
    ),
    Mutant(
        "indexer-load-behind-what-fired",
        "timerwheel/runtime/indexer.py",
        "a start loads all that ever fired, wherever the clock has gone",
        "        wanted = max(self._clock.now_ms() + self._settings.near_ms, self._view.fired_until_ms)",
        "        wanted = self._clock.now_ms() + self._settings.near_ms",
        (f"{HELD}::test_a_start_after_a_step_back_loads_what_ever_fired_in_a_bounded_number_of_looks",),
    ),
    Mutant(
        "indexer-checkpoint-behind",
        "timerwheel/index/writer.py",
        "the checkpoint is stored with the stage that it covers",
        "                until=stage.until,\n                sequence",
        "                until=self.state.until,\n                sequence",
        (INDEX, "tests/property/test_engine_model.py"),
    ),
    # ------------------------------------------------------------------ retention
    Mutant(
        "retention-moves-in-flight",
        "timerwheel/runtime/retention.py",
        "retention leaves a timer alone that is being recalled",
        "            if speaks == offset and offset not in self._in_flight:",
        "            if speaks == offset:",
        (f"{HELD}::test_retention_leaves_a_timer_alone_whose_recall_is_being_stored",),
    ),
    Mutant(
        "retention-manifest-unsynced",
        "timerwheel/runtime/retention.py",
        "the manifest knows of nothing that a crash may forget",
        "        await self._threads.log(self._log.sync)  # the manifest",
        "        await asyncio.sleep(0)  # the manifest",
        (f"{HELD}::test_the_manifest_of_retention_knows_of_nothing_that_a_crash_may_forget",),
    ),
    Mutant(
        "retention-drops-what-waits",
        "timerwheel/runtime/retention.py",
        "a segment with a waiting timer stays",
        "            if segment.pending or segment.last_end_ms",
        "            if segment.last_end_ms",
        (RETENTION,),
    ),
    Mutant(
        "retention-ends-unkept",
        "timerwheel/runtime/retention.py",
        "what ended within retention is known by its id",
        " or segment.last_end_ms >= now_ms - self._settings.retention_ms:",
        ":",
        (RETENTION, DEDUP),
    ),
    Mutant(
        "retention-moves-for-less",
        "timerwheel/runtime/retention.py",
        "what waits is not written again for less than that frees",
        "            if 2 * kept_bytes <= following - old[0][0]:",
        "            if kept_bytes <= following - old[0][0]:",
        (RETENTION,),
    ),
    Mutant(
        "retention-carries-no-keys",
        "timerwheel/runtime/retention.py",
        "a key outlives the segment that told of it",
        "            await self._keys.carry(keys)\n",
        "",
        (DEDUP,),
    ),
    Mutant(
        "retention-carries-what-moved",
        "timerwheel/runtime/retention.py",
        "the key of a timer that was moved and waits is not carried as one that ended",
        "                    if last.kind == Kind.TIMER or last.origin != offset:",
        "                    if last.origin != offset:",
        (CARRIED,),
    ),
    Mutant(
        "retention-carries-recalled-as-delivered",
        "timerwheel/runtime/retention.py",
        "a late repeat of a recalled send is refused after its record is gone",
        "contents_of(record) if last.kind == Kind.CANCEL else []",
        "[]",
        (DEDUP, CARRIED),
    ),
    Mutant(
        "retention-waits-not-for-damaged-key",
        "timerwheel/runtime/retention.py",
        "damage that hides a key holds its segment",
        "                return False\n            await self._keys",
        "                continue\n            await self._keys",
        ("tests/integration/test_dedup_damage.py",),
    ),
    Mutant(
        "keys-carried-untaken",
        "timerwheel/runtime/dedup_keys.py",
        "a sender waits for the carrying of its key",
        "        async with self._take(ended.keys()):",
        "        async with contextlib.AsyncExitStack():",
        (DEDUP,),
    ),
    Mutant(
        "keys-carried-for-ever",
        "timerwheel/runtime/dedup_keys.py",
        "a key that ended a day ago is carried no further",
        "                if self._counts(entry) and _carries_on",
        "                if _carries_on",
        (DEDUP,),
    ),
    Mutant(
        "keys-carried-over-another",
        "timerwheel/runtime/dedup_keys.py",
        "a carried key does not hide the message that the key stands for by now",
        "current[:2] == ended[:2] and",
        "",
        (DEDUP, RECALLED, CARRIED, "tests/property/test_keys_model.py"),
    ),
    Mutant(
        "retention-queues-not-bounded",
        "timerwheel/runtime/retention.py",
        "who reads a queue is not shown what retention removed",
        "            names[topic_id].queues[queue].min_offset = first\n",
        "",
        (RETENTION,),
    ),
    # ------------------------------------------------------------------ recovery
    Mutant(
        "recovery-foreign-index",
        "timerwheel/runtime/recovery.py",
        "an index of another log is not used",
        "    if state.log_id != log.log_id:",
        "    if False:",
        (INDEX,),
    ),
    Mutant(
        "recovery-index-past-the-log",
        "timerwheel/runtime/recovery.py",
        "an index that is past the end of the log is not used",
        "    if state.until > log.tail:",
        "    if False:",
        (INDEX,),
    ),
    Mutant(
        "recovery-rebuild-begins-anew",
        "timerwheel/runtime/recovery.py",
        "a rebuild that was cut short goes on as it began",
        "    view.origin_floor, view.settings_from, view.lost = "
        "state.origin_floor, state.settings_from, state.lost\n",
        "    view.lost = state.lost\n",
        (RETENTION,),
    ),
    Mutant(
        "recovery-commit-error-unseen",
        "timerwheel/runtime/recovery.py",
        "a commit that fails ends the rebuild",
        "        commit.result()\n",
        "        commit.exception()\n",
        (RECOVERY,),
    ),
    Mutant(
        "recovery-mark-ignored",
        "timerwheel/runtime/recovery.py",
        "an index that was marked as damaged is rebuilt",
        "    if (settings.data / REBUILD_MARK).exists():\n        raise IndexDamagedError",
        "    if False:\n        raise IndexDamagedError",
        (INDEX,),
    ),
    # ------------------------------------------------------------------ sending and recalling
    Mutant(
        "sending-settings-loose",
        "timerwheel/runtime/sender.py",
        "messages and the settings sent with them are kept or lost together",
        "            more = len(messages) - (not puts)",
        "            more = len(messages) - 1",
        (f"{HELD}::test_messages_and_the_settings_that_were_sent_with_them_are_kept_or_lost_together",),
    ),
    Mutant(
        "recalling-not-put-back",
        "timerwheel/runtime/recall.py",
        "a reschedule into a full second leaves the message as it was",
        "            taken.put_back()\n            raise",
        "            raise",
        (f"{CONGESTION}::test_a_reschedule_into_a_full_slot_is_refused_and_leaves_the_message",),
    ),
    Mutant(
        "recalling-not-shielded",
        "timerwheel/runtime/recall.py",
        "a reschedule whose caller goes away keeps its place in the second",
        "        await self._stored(asyncio.shield(stored))",
        "        await self._stored(stored)",
        (f"{HELD}::test_a_reschedule_whose_caller_goes_away_keeps_its_place_in_the_second",),
    ),
    # ------------------------------------------------------------------ keys
    Mutant(
        "keys-no-second-look",
        "timerwheel/runtime/dedup_keys.py",
        "a commit between the look at the view and the look at the index hides no key",
        "            if generation == self._view.generation:\n                found = {digest: entry or",
        "            if True:\n                found = {digest: entry or",
        (DEDUP,),
        accepted="equivalent: the view is looked at first, so a key that it lacks is in the index already "
        "or nowhere; what a commit moves meanwhile was found in the view. It would matter in the "
        "other order.",
    ),
    Mutant(
        "keys-unreadable-forgotten",
        "timerwheel/runtime/dedup_keys.py",
        "the sweep keeps a key whose message cannot be read",
        "            return now_ms + KEY_KEPT_MS\n",
        "            return None\n",
        (f"{HELD}::test_the_sweep_keeps_a_key_whose_message_was_delivered_and_cannot_be_read",),
    ),
    Mutant(
        "keys-recalled-forgotten",
        "timerwheel/runtime/dedup_keys.py",
        "a repeat of any send that was recalled under a key is refused",
        "                known.recalled[place] = holder.recalled\n",
        "                known.recalled[place] = []\n",
        (f"{RECALLED}::test_a_repeat_of_any_send_that_was_recalled_under_the_key_is_refused",),
    ),
    Mutant(
        "keys-after-recall-of-any",
        "timerwheel/runtime/dedup_keys.py",
        "only who names the recalled message sends the same again",
        "        if message.after_recall == self.receipt.id:",
        "        if message.after_recall is not None:",
        (RECALLED,),
    ),
    Mutant(
        "keys-not-taken",
        "timerwheel/runtime/dedup_keys.py",
        "of any number of senders exactly one stores",
        "            await asyncio.wait(under_way)\n        released",
        "            break\n        released",
        (DEDUP,),
    ),
    Mutant(
        "dedup-one-domain",
        "timerwheel/state/dedup_key.py",
        "no key of a client stands for a run of a schedule",
        "digest_size=_HASH_BYTES, person=domain.encode()",
        "digest_size=_HASH_BYTES",
        (RESERVED,),
    ),
    # ------------------------------------------------------------------ who may call
    Mutant(
        "auth-changed-token",
        "api/security/auth.py",
        "a request that runs is cut off when its token is another one of the same name",
        "self._keyring.tokens.named(token.name) == token",
        "self._keyring.tokens.named(token.name) is not None",
        (f"{TOKENS}::test_a_request_that_runs_is_cut_off_when_its_token_is_another_one_of_the_same_name",),
    ),
]
