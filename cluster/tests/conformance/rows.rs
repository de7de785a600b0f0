//! The list of the rows, and what makes a test of each: `conform! { NAME: BED }` is a module with all of them over the engine of that [`Bed`](crate::bed::Bed).
//! `conform! { NAME: BED, [#[ignore = "..."]] }` gives each test that attribute.

macro_rules! row {
    ([$($attribute:tt)*] $bed:ty, $file:ident, $row:ident) => {
        #[test]
        $($attribute)*
        fn $row() {
            let _watchdog = crate::desk::Watchdog::new(stringify!($row));
            crate::$file::$row::<$bed>();
        }
    };
}

macro_rules! rows {
    ($attributes:tt $bed:ty; $($file:ident: $($row:ident)+;)+) => { $($(
        row! { $attributes $bed, $file, $row }
    )+)+ };
}

macro_rules! conform {
    ($engine:ident: $bed:ty) => {
        conform! { $engine: $bed, [] }
    };
    ($engine:ident: $bed:ty, $attributes:tt) => {
        mod $engine {
            rows! { $attributes $bed;
                queue:
                    r01_schedule_returns_at_once
                    r02_what_is_not_registered_is_refused
                    r03_any_worker_may_run_it
                    r04_a_task_whose_worker_dies_is_run_by_another_one
                    r05_without_failures_each_task_runs_exactly_once
                    r06_a_task_that_comes_back_goes_to_the_end
                    r07_a_join_waits_for_all_and_may_be_repeated
                    r08_a_task_that_ended_before_the_join_does_not_hold_it_up
                    r09_done_does_not_wait_and_raises
                    r10_the_first_error_is_raised_once_by_schedule_join_or_done
                    r11_an_error_is_raised_when_the_rest_is_cancelled_and_nothing_runs
                    r11_each_call_raises_an_error_when_nothing_runs
                    r11_what_waits_behind_a_failure_never_begins
                    r12_a_cancellation_does_not_mask_its_cause
                    r13_a_schedule_that_raises_schedules_nothing
                    r14_of_several_errors_one_is_raised
                    r15_after_an_error_everything_goes_on_with_the_same_resources
                    r16_a_task_that_would_come_back_while_an_error_is_pending_is_cancelled
                    r17_a_full_queue_makes_schedule_wait_and_never_blocks_workers
                    r18_a_join_waits_for_what_was_scheduled_before
                    r19_any_number_of_threads_may_schedule_and_join
                    r20_what_a_worker_makes_for_itself_comes_first_and_no_join_waits_for_it
                    r21_a_join_with_a_time_limit_answers_false
                    r24_five_thousand_tasks_run_on_one_worker
                    r59_a_cancel_that_follows_from_a_failure_is_not_reported;
                values:
                    r25_a_fetch_waits_and_keeps_the_shape
                    r26_a_fetch_answers_the_error_of_the_task_each_time
                    r27_what_was_cancelled_says_so_and_can_be_scheduled_again
                    r28_a_value_says_how_far_it_is
                    r29_a_result_survives_its_worker
                    r30_a_task_whose_value_is_dropped_still_runs
                    r31_structures_of_values_are_fetched_as_a_whole
                    r33_a_task_without_a_result_is_fetched_as_nothing
                    r61_the_store_can_be_read_while_all_workers_are_down
                    a_large_result_passes_from_worker_to_worker_and_not_through_the_coordinator
                    a_small_result_is_put_into_the_store_when_that_is_asked_for
                    a_worker_reads_a_stored_value_once
                    a_stored_value_of_another_cluster_is_refused;
                resources:
                    r34_each_task_gets_the_part_of_its_worker
                    r35_two_resources_of_one_function_are_independent
                    r36_several_resources_in_one_call_keep_their_state
                    r38_a_resource_is_made_of_what_is_there_already
                    r39_what_a_resource_makes_is_its_workers_alone
                    r40_a_resource_that_asks_for_what_its_worker_cannot_have_fails_at_join
                    r41_workers_shuffle_differently
                    r42_a_resource_is_made_once_on_each_worker
                    r43_a_resource_that_failed_fails_the_tasks_that_ask_for_it
                    r44_a_resource_that_failed_and_is_not_used_does_no_harm
                    r45_a_resource_that_nobody_holds_is_dropped_on_all_workers
                    r46_a_resource_knows_its_worker
                    r47_increments_spread_over_workers_add_up;
                workers:
                    r48_others_go_on_when_a_worker_dies
                    r49_a_worker_that_comes_back_makes_its_resources_first
                    r50_a_resource_is_made_later_on_a_worker_that_is_down
                    r51_a_worker_that_dies_while_it_makes_a_resource_makes_all_anew
                    r52_all_tasks_end_however_workers_die
                    r53_an_error_comes_out_while_a_worker_recovers
                    r54_a_task_waits_for_a_worker_as_long_as_it_has_time
                    r55_a_worker_that_comes_back_is_another_incarnation
                    r56_the_death_of_a_worker_is_no_error_and_a_task_s_error_is_not_retried
                    r63_the_state_of_each_worker_is_known
                    r64_workers_come_and_leave_at_any_time
                    r65_with_the_last_handle_everything_is_cancelled
                    r68_what_happened_is_counted;
                beyond:
                    a_task_that_kills_its_workers_is_not_tried_for_ever
                    a_cancelled_fetch_cancels_what_only_it_wanted
                    a_cancelled_fetch_spares_what_others_want
                    a_schedule_that_waits_for_room_can_be_cancelled
                    a_join_that_is_cancelled_changes_nothing_of_others
                    a_cancelled_join_cancels_what_only_it_wanted
                    a_deadline_travels_with_the_task
                    a_deadline_that_is_over_ends_the_task_and_is_no_error_of_the_job
                    an_error_keeps_its_type
                    a_worker_that_drains_ends_what_it_has
                    a_worker_that_drains_ends_what_it_has_however_often_it_is_told
                    a_shutdown_waits_until_nothing_runs
                    a_start_waits_for_so_many_workers
                    a_map_takes_its_arguments_as_there_is_room
                    a_map_names_the_cause_and_raises_it_once
                    a_map_that_is_dropped_cancels_the_rest
                    a_map_that_is_cancelled_cancels_the_rest
                    an_unordered_map_yields_what_is_there
                    a_map_of_each_yields_failures_and_goes_on
                    r62_results_that_nobody_has_fetched_are_kept_for_the_next_coordinator
                    r67_a_watchdog_reports_while_no_task_ends
                    r67_the_periods_are_counted_anew_when_a_task_has_ended
                    r67_workers_say_what_they_do_also_if_their_tasks_are_stuck
                    a_panic_is_a_failure_with_its_text
                    a_task_that_is_cancelled_by_hand_is_no_error
                    progress_is_seen_in_the_value
                    a_token_of_another_cluster_is_refused;
                wild:
                    an_error_whose_text_panics_is_a_failure
                    an_error_with_a_text_of_megabytes_is_cut
                    what_cannot_be_written_or_read_is_a_failure_that_says_so
                    a_task_that_goes_on_beyond_its_time_and_the_grace_ends_with_its_worker;
            }
        }
    };
}
