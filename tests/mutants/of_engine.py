"""Mutants of the engine: the wheel, firing, indexing, retention, recovery, sending and recalling."""

from tests.mutants.mutant import Mutant

HELD = "tests/integration/engine/test_held.py"
DEDUP = "tests/integration/index/test_dedup.py"
CARRIED = "tests/crash/test_crash_carried_keys.py"
RECALLED = "tests/integration/index/test_dedup_recalled.py"
RESERVED = "tests/integration/engine/test_reserved_names.py"
FAILURE = "tests/integration/engine/test_failure.py"
RETENTION = "tests/integration/runtime/test_retention.py"
RECOVERY = "tests/unit/runtime/test_recovery.py"
INDEX = "tests/integration/index/test_index.py"
CONGESTION = "tests/integration/runtime/test_congestion.py"
TOKENS = "tests/e2e/api/security/test_security_tokens.py"
NEAR = "tests/unit/wheel/test_near.py"
WHEEL = "tests/unit/wheel/test_slot_table.py"

COLUMNS = "tests/integration/runtime/test_column_sends.py"
ALIKE = "tests/integration/runtime/test_alike_sends.py"
ARROW = "tests/e2e/api/test_http_arrow.py"

WAITING = "tests/integration/groups/test_groups_waiting.py"
LEAD = "tests/e2e/api/http/test_http_lead.py"

BROKEN = "tests/integration/client/test_broken_connections.py"
STOPS = "tests/e2e/process/test_stop_under_load.py"
FAREWELLS = "tests/e2e/api/http/test_http_farewell.py"

MUTANTS = [
    # ------------------------------------------------------------------ a connection that breaks
    Mutant(
        "broken-call-made-again",
        "timerwheel/shards/connection_pool.py",
        "a node says that it does not know what became of a call whose shard was killed",
        "            middlewares=(broken_connection.reported_unless_reading,),\n",
        "",
        (f"{BROKEN}::test_a_node_does_not_know_what_became_of_a_call_whose_shard_was_killed",),
    ),
    Mutant(
        "broken-recall-made-again",
        "timerwheel/client/connection.py",
        "a recall is not answered for another one that nobody asked for",
        "            middlewares=(broken_connection.reported_unless_reading,),\n",
        "",
        (f"{BROKEN}::test_a_recall_is_not_answered_for_another_one_that_nobody_asked_for",),
    ),
    Mutant(
        "broken-push-made-again",
        "timerwheel/push/endpoint.py",
        "a call of a receiver is made once more at most",
        "            middlewares=(broken_connection.reported,),\n",
        "",
        (f"{BROKEN}::test_a_call_of_a_receiver_is_made_once_more_at_most",),
    ),
    # ------------------------------------------------------------------ an orderly stop
    Mutant(
        "stop-resets-new-connections",
        "api/connection_limit.py",
        "a client that has just connected knows whether its request was carried out",
        "                for connection in waiting_connections(one):\n",
        "                for connection in ():\n",
        (
            f"{STOPS}::test_a_client_with_a_new_connection_for_each_request_knows_of_each_whether_it_was_stored",
        ),
    ),
    Mutant(
        "stop-drops-body",
        "api/aiohttp_private.py",
        "a request whose body is under way at the stop is answered",
        "        if not self._request_in_progress:\n            super().data_received(data)",
        "        if True:\n            super().data_received(data)",
        (f"{FAREWELLS}::test_a_request_whose_body_is_under_way_at_the_stop_is_read_to_its_end_and_answered",),
    ),
    Mutant(
        "stop-cuts-tls-handshakes",
        "api/security/handshakes.py",
        "a client that ends its TLS handshake at the stop knows whether its request was carried out",
        "timeout=FINISH_S_MAX",
        "timeout=0",
        (
            f"{STOPS}::test_a_client_with_a_new_connection_for_each_request_knows_of_each_whether_it_was_stored",
        ),
    ),
    Mutant(
        "stop-without-word",
        "api/connection.py",
        "a request on a new connection that the stop closes gets an answer",
        "if farewell.after_answers or (self.is_closing_down and not self.requests):",
        "if farewell.after_answers:",
        (
            f"{FAREWELLS}::test_without_a_node_in_front_a_connection_without_a_request_so_far_has_one_under_way",
        ),
    ),
    # ------------------------------------------------------------------ who leads
    Mutant(
        "lead-not-asked",
        "api/security/auth.py",
        "a leader that was replaced answers no call from what it has",
        "if call is not None and call.needs_engine and not self._handle.has_lead:",
        "if call is None and not self._handle.has_lead:",
        (f"{LEAD}::test_a_leader_that_was_replaced_answers_no_call",),
    ),
    Mutant(
        "lead-question-shared-late",
        "timerwheel/runtime/lead.py",
        "who asks while a question is on its way waits for the next one",
        "self._running, self._next = self._next, None",
        "self._running = self._next",
        ("tests/unit/runtime/test_lead.py::test_all_who_ask_before_the_journal_does_share_what_it_says",),
    ),
    Mutant(
        "lead-not-asked-after-a-pause",
        "timerwheel/groups/groups.py",
        "a consumer that waits is given nothing by a leader that slept",
        "                    await lead.assure()  # after a pause leases may only seem to have ended",
        "                    pass",
        (f"{WAITING}::test_a_consumer_that_waits_is_given_nothing_once_another_process_may_lead",),
    ),
    # ------------------------------------------------------------------ sends in columns
    Mutant(
        "columns-torn-unit",
        "timerwheel/runtime/column_sender.py",
        "the records of a send in columns count together or not at all",
        'headers["flags"][:-1] = FLAG_MORE',
        'headers["flags"][:0] = FLAG_MORE',
        ("tests/property/test_arrow_sends.py",),
    ),
    Mutant(
        "columns-overtake",
        "timerwheel/runtime/column_sender.py",
        "a row without delay goes out behind timers of its topic and millisecond",
        "        changed: np.ndarray = waits | behind[columns.topic]",
        "        changed: np.ndarray = waits | (behind[columns.topic] & False)",
        (f"{COLUMNS}::test_a_row_without_delay_goes_out_behind_timers_of_its_millisecond",),
    ),
    Mutant(
        "columns-blocks-mixed-up",
        "timerwheel/runtime/group_commit.py",
        "of units written together each record is read from its own",
        "found += read_part(places[begin:end] - (upto - len(table.rows)))",
        "found += read_part(places[begin:end])",
        (f"{COLUMNS}::test_blocks_and_single_records_are_written_together",),
    ),
    # ------------------------------------------------------------------ messages that are alike
    Mutant(
        "alike-overtake",
        "timerwheel/runtime/sender.py",
        "messages that are alike go out behind timers of their topic and millisecond",
        "if not self._are_ordinary(alike) or self.has_due(now_ms):",
        "if not self._are_ordinary(alike):",
        (f"{ALIKE}::test_they_do_not_overtake_a_timer_of_their_topic_and_millisecond",),
    ),
    Mutant(
        "alike-torn-unit",
        "store/record.py",
        "messages that are alike count together or not at all",
        "last[_CRC_FROM:FLAGS_AT] + bytes((FLAG_MORE,)) + last",
        "last[_CRC_FROM:FLAGS_AT] + bytes((0,)) + last",
        ("tests/property/test_batch_sends.py",),
    ),
    Mutant(
        "arrow-dictionary-counted-once",
        "api/messages/arrow_stream.py",
        "a value of a dictionary counts as often as it is used",
        "compute.sum(lengths.take(array.indices))",
        "compute.sum(lengths)",
        (f"{ARROW}::test_a_dictionary_counts_as_often_as_it_is_used",),
    ),
    Mutant(
        "arrow-bomb",
        "api/messages/arrow_stream.py",
        "compressed buffers are not unpacked before their size is known",
        "size_bytes += packed_bytes if length == _UNPACKED else length",
        "size_bytes += packed_bytes",
        ("tests/unit/api/test_arrow_stream.py::test_a_bomb_is_refused_by_what_its_metadata_say",),
    ),
    # ------------------------------------------------------------------ the wheel
    Mutant(
        "wheel-drop-incomplete",
        "timerwheel/wheel/slot_table.py",
        "a second slot is not dropped while something above may still come down to it",
        "if level != Level.SECOND or start_ms >= until:",
        "if level != Level.SECOND:",
        (
            f"{WHEEL}::test_a_second_slot_that_more_can_come_down_to_is_not_dropped_though_its_counts_are_even",
        ),
    ),
    Mutant(
        "wheel-compact-lone",
        "timerwheel/wheel/slot_table.py",
        "compacting drops pairs of add and remove, and no remove whose add is elsewhere",
        "kept = cancel_out(_take(txn, slot_prefix(level, start_ms), COMPACTED_MAX))",
        "kept = net(_take(txn, slot_prefix(level, start_ms), COMPACTED_MAX))",
        (f"{WHEEL}::test_compacting_a_slot_keeps_a_remove_whose_add_is_still_above",),
    ),
    Mutant(
        "wheel-crowded",
        "timerwheel/wheel/slot_table.py",
        "a slot is compacted once a third of its entries are removes, not before",
        "and count >= 3 * weight",
        "and count > 3 * weight",
        (
            f"{WHEEL}::test_a_slot_is_crowded_when_a_third_of_its_entries_are_removes_and_they_are_more_than_a_page",
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
            "tests/unit/wheel/test_geometry.py::test_a_slot_that_begins_at_its_horizon_is_cascaded_and_never_waited_for",
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
        "            self.gone.discard(offset)\n        elif",
        "            self.gone.discard(offset)\n            self.add(entry)\n        elif",
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
        "        self.quarantined[offset] = SetAsideInfo(",
        "        _ = SetAsideInfo(",
        (FAILURE,),
    ),
    Mutant(
        "firing-early-due-time",
        "timerwheel/runtime/firing.py",
        "a message that fires before its time is due at once",
        'np.minimum(timers["due_ms"], now_ms) if early else timers["due_ms"]',
        'timers["due_ms"]',
        ("tests/integration/engine/test_semantics.py",),
    ),
    # ------------------------------------------------------------------ the index
    Mutant(
        "thaw-keys",
        "timerwheel/state/memtable.py",
        "a key that was taken during a failed index commit stays taken",
        "    joined.keys = first.keys.followed_by(second.keys)\n",
        "    joined.keys = first.keys\n",
        (f"{HELD}::test_a_key_that_was_taken_during_a_failed_index_commit_stays_taken",),
    ),
    Mutant(
        "thaw-marks",
        "timerwheel/state/memtable.py",
        "the newest record speaks for its message after a failed index commit",
        "    joined.pointers = first.pointers | second.pointers\n",
        "    joined.pointers = second.pointers | first.pointers\n",
        ("tests/unit/state/test_state.py::test_newest_mark_wins_over_the_sealed_one",),
    ),
    Mutant(
        "indexer-commit-unsynced",
        "timerwheel/runtime/indexer.py",
        "the index is never ahead of the durable log",
        "            await self._threads.log(self._log.sync)\n            with self._counters.index_commit_s",
        "            with self._counters.index_commit_s",
        (f"{HELD}::test_an_index_commit_begins_with_a_sync_of_the_log",),
    ),
    Mutant(
        "indexer-loads-in-flight",
        "timerwheel/runtime/indexer.py",
        "a timer that is being recalled is not loaded a second time",
        "        if len(self._in_flight) and len(entries):",
        "        if False:",
        (f"{HELD}::test_a_timer_whose_recall_is_being_stored_is_not_loaded_a_second_time",),
    ),
    Mutant(
        "indexer-load-behind-what-fired",
        "timerwheel/runtime/indexer.py",
        "a start loads all that ever fired, wherever the clock has gone",
        "        wanted = max(self._clock.now_ms() + self._settings.near_ms, self._state.fired_until_ms)",
        "        wanted = self._clock.now_ms() + self._settings.near_ms",
        (f"{HELD}::test_a_start_after_a_step_back_loads_what_ever_fired_in_a_bounded_number_of_looks",),
    ),
    Mutant(
        "indexer-checkpoint-behind",
        "timerwheel/index/writer.py",
        "the checkpoint is stored with the stage that it covers",
        "                until=memtable.until,\n                sequence",
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
        "            if segment.pending or not self._is_old(",
        "            if not self._is_old(",
        (RETENTION,),
    ),
    Mutant(
        "retention-ends-unkept",
        "timerwheel/runtime/retention.py",
        "what ended within retention is known by its id",
        " or not self._is_old(self._ages.age_ms(segment.last_end_ms)):",
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
        ("tests/integration/index/test_dedup_damage.py",),
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
        "            queue.min_offset = max(queue.min_offset, first)\n",
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
        "    log_state.continue_rebuild(state)\n",
        "",
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
        "            await asyncio.shield(stored)",
        "            await stored",
        (f"{HELD}::test_a_reschedule_whose_caller_goes_away_keeps_its_place_in_the_second",),
    ),
    # ------------------------------------------------------------------ a record that comes alone
    Mutant(
        "table-few-root",
        "store/table.py",
        "few records and many make the same rows",
        "offset, offset if root == NO_OFFSET else root, origin",
        "offset, root, origin",
        ("tests/unit/store/test_table.py",),
    ),
    Mutant(
        "state-lone-end-uncounted",
        "timerwheel/state/state.py",
        "records applied one by one say what they say together",
        "            ended.pending -= 1\n",
        "",
        ("tests/unit/state/test_state.py",),
    ),
    Mutant(
        "state-lone-end-of-a-move",
        "timerwheel/state/state.py",
        "records applied one by one say what they say together",
        "            if not batch.has_timers:\n                ended.last_end_ms = max(",
        "            if True:\n                ended.last_end_ms = max(",
        ("tests/unit/state/test_state.py",),
    ),
    # ------------------------------------------------------------------ keys
    Mutant(
        "state-no-second-look",
        "timerwheel/state/state.py",
        "an answer that an index commit or a change of the memtables overtook is looked for again",
        "            if generation == self.generation and known == staged():\n",
        "            if True:\n",
        (
            INDEX,
            DEDUP,
            RECALLED,
            RETENTION,
            "tests/integration/runtime/test_recall.py",
            "tests/integration/runtime/test_bulk.py",
        ),
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
        "            recalled = holder.recalled\n",
        "            recalled = []\n",
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
        "replace-in-two-units",
        "timerwheel/runtime/sender.py",
        "a message and the CANCEL of the one that it replaces are stored together or not at all",
        "one.cancel(store_ms, FLAG_MORE)",
        "one.cancel(store_ms, 0)",
        ("tests/crash/test_crash_replace.py",),
    ),
    Mutant(
        "keys-not-taken",
        "timerwheel/runtime/dedup_keys.py",
        "of any number of senders exactly one stores",
        "            await asyncio.wait({sending[digest] for digest in wanted & sending.keys()})\n",
        "            break\n",
        (DEDUP,),
    ),
    Mutant(
        "keys-of-another-caller",
        "timerwheel/runtime/key_lookups.py",
        "a caller gets the keys that it asked for, and no others",
        "{digest: found[digest] for digest in digests if digest in found}",
        "found",
        ("tests/integration/runtime/test_key_lookups.py",),
    ),
    Mutant(
        "dedup-one-domain",
        "timerwheel/state/dedup_key.py",
        "no key of a client stands for a run of a schedule",
        "digest_size=HASH_BYTES, person=domain.encode()",
        "digest_size=HASH_BYTES",
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
