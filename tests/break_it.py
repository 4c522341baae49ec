"""Break it: mistakes of one line, each with the test that notices it.

For a reader: pick a line of TABLE, make the change by hand, predict which test fails and with which numbers, then look:
    python tests/break_it.py --list --only fedgems            # what there is to break
    python -m pytest tests/test_fedgems.py::test_eq4_unreliable_client_gets_exactly_zero
    git checkout algorithms                                   # make it whole again
For the tests: a mistake that none of them notices is a test that is missing.
    python tests/break_it.py                                  # makes all of them, in copies of the repository; a minute or two
    python tests/break_it.py --every 10                       # a sample
    python tests/break_it.py --only "FedML"                   # those whose file, function or words say so

Each mistake replaces a part of one line that occurs once in its file. It is caught if the modules can still be imported and an
assertion of the named test fails; SURVIVED if the test passes; broken if anything else happens, such as a NameError. The exit
status is 0 if all are caught.
"""
import argparse
import ast
import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
LIMIT = 300                          # seconds for a child, so that a mistake that never ends does


class Mutant(NamedTuple):
    file: str
    old: str                         # a part of one line, once in the file
    new: str
    test: str                        # of tests/
    what: str
    whose: str = ""                  # public code that has, or had, this mistake


TABLE = {
    # --------------------------------------------------------------------------------------------- what all share
    "algorithms/equations.py": [
        ("teacher_log_probs.exp() * (teacher_log_probs - student_log_probs)",
         "student_log_probs.exp() * (student_log_probs - teacher_log_probs)",
         "test_common.py::test_kl_is_from_teacher_to_student_by_hand", "KL(student || teacher)", "AIJack's FedGEMS"),
        ("teacher_logits.detach() / temperature", "teacher_logits / temperature",
         "test_common.py::test_kl_gives_the_teacher_no_gradient_and_the_student_the_difference_of_probabilities",
         "the teacher learns too", "AIJack's FedGEMS"),
        ("teacher_logits.detach() / temperature", "teacher_logits.detach()",
         "test_common.py::test_temperature_softens_both_sides_by_hand", "the teacher is not softened", "FedDF's avg_probs"),
        ("F.log_softmax(teacher_logits.detach() / temperature, dim=-1)",
         "(F.softmax(teacher_logits.detach() / temperature, dim=-1) + 1e-7).log()",
         "test_common.py::test_kl_of_equal_logits_is_exactly_zero_and_otherwise_positive", "1e-7 on the teacher's probabilities",
         "FedML's FedGKT"),
        ("F.log_softmax(student_logits / temperature, dim=-1)", "F.softmax(student_logits / temperature, dim=-1).log()",
         "test_common.py::test_kl_of_logits_of_ten_thousand_is_finite", "the logarithm of a softmax that underflows",
         "FedBE's code"),
        ("(teacher_log_probs - student_log_probs)).sum(-1)", "(teacher_log_probs - student_log_probs)).mean(-1)",
         "test_common.py::test_kl_is_a_sum_over_classes_and_one_number_per_sample", "the mean over classes: C times too small",
         "FedBE's code, PFLlib's FedKD"),
        ("return temperature**2 * kl", "return kl",
         "test_common.py::test_distillation_loss_is_temperature_squared_times_the_mean", "no temperature²", "FedDF's code"),
        ("return temperature**2 * kl", "return temperature * 2.0 * kl",
         "test_common.py::test_distillation_loss_is_temperature_squared_times_the_mean", "twice the temperature, not its square",
         "flearn"),
        ("kl_divergence(teacher_logits, student_logits, temperature).mean()",
         "kl_divergence(teacher_logits, student_logits, temperature).sum()",
         "test_common.py::test_distillation_loss_is_temperature_squared_times_the_mean", "the sum over the batch", "flearn"),
        ("shares = [w / sum(weights) for w in weights]", "shares = weights",
         "test_common.py::test_eq2_average_by_hand", "weights that do not sum to 1", "FedBE's code"),
        ("shares = [w / sum(weights) for w in weights]", "shares = [1 / len(weights) for w in weights]",
         "test_common.py::test_eq2_average_by_hand", "all models weigh the same", "FedDF's code"),
        ("sum(share * value for share, value in zip(shares, values))",
         "sum(share * value for share, value in zip(shares, values)) if 'running' not in name else values[-1]",
         "test_common.py::test_average_weights_averages_running_statistics", "the last client's running statistics",
         "FedDF's code"),
        ("if first.is_floating_point():", "if True:",
         "test_common.py::test_average_weights_keeps_counters_whole", "counters become fractions"),
        ("torch.stack(values).amax(0)", "values[0]",
         "test_common.py::test_average_of_one_model_does_not_share_its_memory", "the average holds a client's own tensor"),
        ("-(target_probs.detach() * F.log_softmax", "-(F.log_softmax(target_probs.detach(), dim=-1) * F.log_softmax",
         "test_logits.py::test_soft_cross_entropy_by_hand", "the target is a log-softmax as well", "AIJack's DS-FL"),
        ("-(target_probs.detach() * F.log_softmax", "-(target_probs.detach().softmax(-1) * F.log_softmax",
         "test_logits.py::test_soft_cross_entropy_of_a_one_hot_target_is_minus_the_logarithm_of_its_probability",
         "a softmax over probabilities", "AIJack's DS-FL"),
    ],
    "algorithms/common.py": [
        ("np.random.default_rng(np.random.SeedSequence(seed, ", "np.random.default_rng(np.random.SeedSequence(10, ",
         "test_common.py::test_sampling_depends_on_the_seed_and_on_the_round", "the seed is always 10", "FedML's partition_data"),
        ("np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_words(keys)))",
         "np.random.default_rng([seed, *_words(keys)])",
         "test_common.py::test_equal_keys_give_equal_numbers_and_other_keys_others", "a list loses the zeros at its end"),
        ("with torch.random.fork_rng(devices=gpus):", "with contextlib.nullcontext():",
         "test_common.py::test_streams_leave_every_global_generator_alone", "the global generator is reset",
         "FedML's _client_sampling"),
        ("max(1, round(participation * num_clients))", "max(1, int(participation * num_clients))",
         "test_common.py::test_participation_is_a_share_of_all_clients_and_at_least_one", "the share is rounded down"),
        ("size=size, replace=False", "size=size",
         "test_common.py::test_participation_is_a_share_of_all_clients_and_at_least_one", "a client is drawn twice"),
        ("bool((x.abs() < HUGE).all())", "bool((x.abs() < HUGE).any())",
         "test_logits.py::test_an_upload_is_left_out_for_a_single_infinity[fedmd-run-inf]", "one good number is enough"),
        ("if is_finite(upload)}", "if True}",
         "test_fedavg.py::test_non_finite_upload_is_left_out", "an upload with nan is averaged"),
    ],
    "algorithms/training.py": [
        ("torch.from_numpy(rng.permutation(num_samples)).to(device).split(batch_size)",
         "(b for b in torch.from_numpy(rng.permutation(num_samples)).to(device).split(batch_size) if len(b) == batch_size)",
         "test_common.py::test_every_sample_is_in_every_pass_exactly_once_and_the_last_batch_may_be_smaller",
         "the last, smaller batch is dropped", "FedML's FedGKT, PFLlib"),
        ("torch.from_numpy(rng.permutation(num_samples))", "torch.arange(num_samples)",
         "test_common.py::test_passes_are_shuffled_anew", "nothing is shuffled"),
        ("    model.eval()", "    model.train()",
         "test_common.py::test_prediction_does_not_depend_on_the_other_images_and_leaves_the_model_as_it_was",
         "teachers predict in train mode", "AIJack's FedGEMS and DS-FL, flearn"),
        ("model.train(was_training)", "model.train()",
         "test_common.py::test_prediction_does_not_depend_on_the_other_images_and_leaves_the_model_as_it_was",
         "prediction ends in train mode", "FedDF's code"),
        ("load_model(fed, member)", "load_model(fed, members[0])",
         "test_common.py::test_predict_members_is_one_prediction_per_state", "every member is the first one"),
        ("    model.train()", "    model.eval()",
         "test_logits.py::test_a_student_sees_augmented_images_in_train_mode", "training in eval mode"),
        ("batch_loss = loss(forward(fed, model, batch), rows)", "batch_loss = loss(forward(fed, model, batch), rows.sort().values)",
         "test_logits.py::test_a_loss_is_given_the_rows_of_its_images", "targets of other images"),
        ('if saved["optimizer"] is not None:', "if False:",
         "test_logits.py::test_saved_and_restored_is_as_if_never_saved", "the optimiser forgets between rounds"),
        ('copy.deepcopy(saved["optimizer"])', 'saved["optimizer"]',
         "test_logits.py::test_training_a_restored_model_does_not_change_what_was_kept", "a later round changes a kept state"),
        ("partial(torch.optim.Adam, amsgrad=True)", "torch.optim.Adam",
         "test_baselines.py::test_amsgrad_is_the_papers_adam[amsgrad-True]", "plain Adam under the name of AMSGrad"),
    ],
    "algorithms/evaluation.py": [
        ("combinations(predicted, 2)", "combinations(predicted[:2], 2)",
         "test_common.py::test_disagreement_by_hand", "only the first two members are compared"),
    ],

    # ---------------------------------------------------------------------------------------------- weights travel
    "algorithms/fedavg.py": [
        ("sizes = [len(fed.private[i].labels) for i in uploads]",
         "sizes = [len(fed.private[i].labels) for i in range(len(uploads))]",
         "test_fedavg.py::test_fedavg_round_by_hand", "sizes by place in the list of active clients", "FedBE's code"),
        ("sizes = [len(fed.private[i].labels) for i in uploads]", "sizes = [1 for i in uploads]",
         "test_fedavg.py::test_two_rounds_against_a_slow_loop[run-0.0]", "clients count equally whatever their sizes",
         "FedDF's code"),
        ("fed.augment(images[rows], rng) if fed.augment else images[rows]", "images[rows]",
         "test_fedavg.py::test_augmentation_is_what_the_client_trains_on", "no augmentation"),
        ("model.parameters(), lr=lr, weight_decay=weight_decay)", "model.parameters(), lr=lr)",
         "test_fedavg.py::test_weight_decay_shrinks_the_weights_by_hand", "no weight decay"),
        ("weights_ledger([(model, len(active))], COPIES)", "weights_ledger([(model, len(fed.private))], COPIES)",
         "test_fedavg.py::test_bytes_of_a_round_are_what_the_messages_hold", "those who do not take part pay too"),
        ("lr=lr, optimizer=optimizer,", "lr=lr,",
         "test_command_line.py::"
         "test_optimizer_and_weight_decay_reach_every_network[fedavg-amsgrad]",
         "clients keep to SGD whatever is asked for"),
    ],
    "algorithms/fedprox.py": [
        ("return mu / 2 * squared_distance", "return mu * squared_distance",
         "test_fedavg.py::test_proximal_term_is_half_mu_times_the_squared_distance_by_hand", "no half"),
        ("global_state[name].detach()).square().sum()", "global_state[name].detach()).norm()",
         "test_fedavg.py::test_gradient_of_the_proximal_term_is_mu_times_the_difference", "the distance, not its square",
         "FedBE's FedProx"),
        ("for name, w in model.named_parameters())", "for name, w in model.named_parameters() if 'weight' in name)",
         "test_fedavg.py::test_two_rounds_against_a_slow_loop[run-0.7]", "biases are not held", "FedBE's FedProx"),
        ("model.named_parameters())", "model.state_dict().items())",
         "test_fedavg.py::test_proximal_term_ignores_buffers", "running statistics are held too"),
        ("global_state[name].detach()", "global_state[name]",
         "test_fedavg.py::test_proximal_term_gives_the_global_model_no_gradient", "the global model gets a gradient"),
        (' + proximal_term(model, server["model"], mu)', " + proximal_term(model, model.state_dict(), mu)",
         "test_fedavg.py::test_two_rounds_against_a_slow_loop[run-0.7]", "clients are held near themselves"),
        ("if not uploads:", "if len(uploads) < 2:",
         "test_fedavg.py::"
         "test_a_federation_of_one_client_learns_as_that_client_does_alone[fedprox]",
         "a lone client's model is not taken"),
        ("optimizer=optimizer, weight_decay=weight_decay)", "optimizer=optimizer)",
         "test_command_line.py::test_optimizer_and_weight_decay_reach_every_network[fedprox-sgd]",
         "the weight decay stays in run"),
    ],
    "algorithms/scaffold.py": [
        ("grad - client_control + server_control", "grad + client_control - server_control",
         "test_scaffold.py::test_correction_is_minus_the_clients_plus_the_servers_control", "the correction has the wrong sign"),
        ("(global_params - local_params)", "(local_params - global_params)",
         "test_scaffold.py::test_new_control_by_hand", "the new control has the wrong sign", "pfl-research's SCAFFOLD"),
        ("/ (steps * lr)", "/ lr",
         "test_scaffold.py::test_new_control_by_hand", "K is missing"),
        ("/ (steps * lr)", "/ steps",
         "test_scaffold.py::test_new_control_by_hand", "the learning rate is missing"),
        ("client_control - server_control + (global", "client_control + (global",
         "test_scaffold.py::test_new_control_is_the_mean_gradient_along_the_path_whatever_the_controls_were",
         "the server's control is missing"),
        ("steps += 1", "steps = local_epochs",
         "test_scaffold.py::test_new_control_is_the_mean_gradient_along_the_path_whatever_the_controls_were",
         "K counts epochs, not steps"),
        ("w.grad = corrected_gradient(w.grad, ", "corrected_gradient(w.grad, ",
         "test_scaffold.py::test_scaffold_round_against_slow_loop", "the correction is computed and thrown away",
         "FedLab's SCAFFOLD"),
        ('"client_control": new_control}', '"client_control": client_control}',
         "test_scaffold.py::test_a_client_that_returns_uses_the_control_it_kept", "clients' controls stay 0",
         "FedML's and flearn's SCAFFOLD"),
        ('change = sum(upload["model"][name] - x for upload in uploads.values()) / len(uploads)',
         'change = list(uploads.values())[-1]["model"][name] - x',
         "test_scaffold.py::test_opposite_updates_of_two_clients_cancel", "only the last client's update counts",
         "FedML's SCAFFOLD"),
        ("= c + len(uploads) / len(fed.private) * change", "= len(uploads) / len(fed.private) * change",
         "test_scaffold.py::test_scaffold_round_against_slow_loop", "the server's control is replaced"),
        ("len(uploads) / len(fed.private) * change", "change",
         "test_scaffold.py::test_server_control_moves_by_the_share_of_all_clients_that_took_part",
         "divided by the active clients, not by all", "flearn's SCAFFOLD"),
        ("x + global_lr * change", "x + change",
         "test_scaffold.py::test_scaffold_round_against_slow_loop", "the global learning rate is missing"),
        ('server["client_controls"] | {i: ', "{i: ",
         "test_scaffold.py::test_scaffold_round_against_slow_loop", "who does not take part forgets its control"),
        ("torch.optim.SGD(model.parameters(), lr=lr)", "torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)",
         "test_scaffold.py::test_new_control_is_the_mean_gradient_along_the_path_whatever_the_controls_were",
         "momentum, with which (x - y) / (K lr) is no gradient", "easyFL's SCAFFOLD"),
        ("COPIES = 2", "COPIES = 1",
         "test_scaffold.py::test_messages_are_twice_the_parameters", "controls travel for nothing"),
        ("w.detach(), steps, lr)", "w, steps, lr)",
         "test_scaffold.py::test_nothing_in_an_upload_holds_a_graph",
         "controls drag their graph along"),
        ('seeded(fed.seed, "local", t, i)', 'seeded(fed.seed, "local", i)',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[scaffold-t]",
         "the same dropout in every round"),
        ('seeded(fed.seed, "local", t, i)', 'seeded(fed.seed, "local", t)',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[scaffold-i]",
         "the same dropout in every client"),
        ("MIXED = False", "MIXED = True",
         "test_command_line.py::"
         "test_clients_may_have_different_networks_unless_one_model_goes_to_all[scaffold]",
         "clients with different networks are let through"),
    ],

    # ------------------------------------------------------------------------------------ distillation on the server
    "algorithms/feddf.py": [
        ("accuracies >= 1.2 / num_classes", "100 * accuracies >= 1.2 / num_classes",
         "test_feddf.py::test_the_threshold_is_a_fifth_above_a_guess", "percent against a share: nobody is dropped",
         "FedDF's code"),
        ("stays if stays.any() else torch.ones_like(stays)", "stays",
         "test_feddf.py::test_if_nobody_would_stay_everyone_does", "everyone is dropped", "FedDF's code"),
        ("client_members(fed, kept), fed.public.images", "client_members(fed, uploads), fed.public.images",
         "test_feddf.py::test_a_client_worse_than_a_guess_neither_counts_in_the_average_nor_teaches",
         "who is dropped still teaches"),
        ("teacher_logits = client_logits.mean(0)", "teacher_logits = client_logits.softmax(-1).mean(0).log()",
         "test_feddf.py::test_feddf_round_by_hand", "the mean of probabilities for the mean of logits"),
        ("server_batch_size=server_batch_size,", "server_batch_size=batch_size,",
         "test_feddf.py::test_feddf_round_by_hand", "the server takes the clients' batch size", "FedDF's code"),
        ("validation_accuracy = accuracy(logits, fed.validation.labels)",
         "validation_accuracy = accuracy(predict_logits(fed, model, fed.test.images), fed.test.labels)",
         "test_feddf.py::test_with_patience_the_student_is_the_best_on_validation_not_the_last", "early stopping on the test set",
         "FedDF's code"),
        ("if validation_accuracy > best_accuracy:", "if validation_accuracy >= best_accuracy:",
         "test_feddf.py::test_a_tie_is_nothing_new", "a tie counts as better"),
        ("step - best_step >= patience", "step - best_step > patience",
         "test_feddf.py::test_distillation_ends_when_patience_steps_brought_nothing_new", "one look more than patience allows"),
        ("best_state = copy.deepcopy(model.state_dict())", "best_state = model.state_dict()",
         "test_feddf.py::test_with_patience_the_student_is_the_best_on_validation_not_the_last", "the best goes on learning"),
        ("model.train()", "model.eval()",
         "test_feddf.py::test_looking_at_the_validation_set_changes_nothing_in_the_student", "the student learns in eval mode"),
        ("best_accuracy, best_state, best_step = -1.0, None, 0",
         "best_accuracy, best_state, best_step = 0.0, None, 0",
         "test_feddf.py::test_a_student_that_is_wrong_at_every_look_is_that_of_the_first_look",
         "a student that is always wrong is never returned"),
        ("accuracy(client_logits.mean(0), fed.test.labels)",
         "accuracy(client_logits.softmax(-1).mean(0), fed.test.labels)",
         "test_feddf.py::test_the_ensemble_predicts_by_mean_logits_not_by_mean_probabilities",
         "the reported ensemble is of probabilities"),
        ("            if cosine:", "            if not cosine:",
         "test_feddf.py::test_the_papers_own_student_against_a_slow_adam_with_cosine_rate_and_clipped_gradient",
         "the rate does not fall"),
        ('seeded(fed.seed, "distil", t, first_client)', 'seeded(fed.seed, "distil", first_client)',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[feddf-t]",
         "the same dropout in every round"),
        ('seeded(fed.seed, "distil", t, first_client)', 'seeded(fed.seed, "distil", t)',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[feddf-i]",
         "the same dropout in every network"),
        ("lr=lr, optimizer=optimizer,", "lr=lr,",
         "test_command_line.py::test_optimizer_and_weight_decay_reach_every_network[feddf-amsgrad]",
         "clients keep to SGD whatever is asked for"),
    ],
    "algorithms/fedbe.py": [
        ("(p * (w[name] - mean).square() for p, w in zip(weights, state_dicts))",
         "(sum(weights) / len(weights) * (w[name] - mean).square() for w in state_dicts)",
         "test_fedbe.py::test_gaussian_sample_by_hand", "the variance is not weighted", "FedBE's code"),
        ("mean + variance.sqrt() * torch", "mean + variance * torch",
         "test_fedbe.py::test_gaussian_sample_by_hand", "the variance for the standard deviation"),
        ("if not name.endswith(BUFFERS):", "if mean.is_floating_point():",
         "test_fedbe.py::test_samples_have_the_averages_buffers[gaussian_sample]", "running variances are drawn, maybe below 0",
         "FedBE's code"),
        ("[g * p for g, p in zip(gamma, weights)]", "gamma",
         "test_fedbe.py::test_dirichlet_sample_by_hand", "clients' sizes do not count", "FedBE's code"),
        ("return 2 * log_mean", "return log_mean",
         "test_fedbe.py::test_teacher_is_the_sharpened_mean_of_probabilities", "the teacher is not sharpened"),
        ("member_logits.log_softmax(-1).logsumexp(0)", "member_logits.mean(0)",
         "test_fedbe.py::test_teacher_is_the_sharpened_mean_of_probabilities", "the mean of logits for the mean of probabilities"),
        ("members = [server, *(server | ", "members = [*(server | ",
         "test_fedbe.py::test_with_distillation_the_average_learns_from_the_ensemble_and_the_next_round_begins_with_it",
         "the average does not vote"),
        ("accuracy(member_logits.mean(0), fed.test.labels)",
         "accuracy(member_logits.softmax(-1).mean(0), fed.test.labels)",
         "test_fedbe.py::test_the_ensemble_predicts_by_mean_logits_not_by_mean_probabilities",
         "the reported ensemble is of probabilities"),
        ("sampled = draw_samples(fed, t, uploads, posterior, samples, concentration)",
         "sampled = draw_samples(fed, t, uploads, posterior, samples, 1.0)",
         "test_fedbe.py::test_with_distillation_the_average_learns_from_the_ensemble"
         "_and_the_next_round_begins_with_it", "the run does not pass --concentration on"),
        ("dirichlet_sample(client_states, sizes, rng, concentration)",
         "dirichlet_sample(client_states, sizes, rng)",
         "test_fedbe.py::test_with_distillation_the_average_learns_from_the_ensemble"
         "_and_the_next_round_begins_with_it", "the draw does not pass --concentration on"),
        ('seeded(fed.seed, "distil", t)', 'seeded(fed.seed, "distil")',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[fedbe-t]",
         "the same dropout in every round"),
        ("concentration: float = 1.0", "concentration: float = 2.0",
         "test_command_line.py::test_defaults_are_the_papers[fedbe]",
         "another Dirichlet distribution by default"),
    ],
    "algorithms/fedsdd.py": [
        ('stream(fed.seed, "mask", t, *pair)', 'stream(fed.seed, "mask", *pair)',
         "test_secure_sum.py::test_fedsdds_masks_are_drawn_anew_in_every_round", "the masks come back every round"),
        ("rng.permutation(active).tolist()", "list(active)",
         "test_fedsdd.py::test_groups_are_drawn_anew_and_every_client_can_reach_the_main_model", "the same groups in every round"),
        ("sorted(shuffled[k::K]) for k in range(K)", "sorted(shuffled[k::K]) for k in reversed(range(K))",
         "test_fedsdd.py::test_group_clients_gives_the_first_groups_the_remainder", "the last groups are the larger ones"),
        ("if not 1 <= K <= len(active):", "if not 1 <= K:",
         "test_fedsdd.py::test_more_models_than_active_clients_is_an_error", "a global model without clients"),
        ("return member_logits.mean(0)", "return member_logits.softmax(-1).mean(0).log()",
         "test_fedsdd.py::test_eq3_is_the_softmax_of_the_mean_logits_not_the_mean_of_the_softmaxes", "the mean of the softmaxes"),
        ("[*ring, ensemble_logits(member_logits)][-R:]", "[*ring, ensemble_logits(member_logits)][-R - 1:]",
         "test_fedsdd.py::test_eq5_first_rounds_use_the_rounds_there_are", "one round too many in the ring"),
        ("averaged, fed.public.images", "start_models(fed, method, K), fed.public.images",
         "test_fedsdd.py::test_ring_holds_the_models_before_distillation_and_never_the_initial_ones",
         "the ring holds the initial models"),
        ("teacher_logits = ensemble_logits(torch.stack(ring))", "teacher_logits = torch.stack(ring).sum(0) / R",
         "test_fedsdd.py::test_two_rounds_with_R_2_against_algorithm_1", "divided by R before there are R rounds"),
        ("test_ring = [*test_ring, ensemble_logits(member_logits)][-R:]", "test_ring = [ensemble_logits(member_logits)]",
         "test_fedsdd.py::test_two_rounds_with_R_2_against_algorithm_1", "the ensemble that predicts has one round"),
        ("if k % K == 0 else w", "if k >= 0 else w",
         "test_fedsdd.py::test_only_the_main_model_learns_from_the_ensemble", "all K models are distilled: diversity is lost"),
        ("init=k)", "init=0)",
         "test_fedsdd.py::test_initial_models_differ_and_main_is_fedavgs", "K equal initial models"),
        ("global_models[group_of[i]]",
         "global_models[group_of[i]] | {x: c for x, c in global_models[0].items() if x == 'client_controls'}",
         "test_fedsdd.py::test_every_global_model_is_trained_by_its_own_group_from_its_own_weights",
         "a control of another global model"),
        ("itertools.islice(passes, distill_steps)", "itertools.islice(passes, distill_steps + 1)",
         "test_fedsdd.py::test_distil_makes_exactly_the_steps_asked_for", "one step too many"),
        ("    model.train()", "    model.eval()",
         "test_fedsdd.py::test_distil_moves_the_students_running_statistics", "the student learns in eval mode"),
        ('seeded(fed.seed, "distil", t, k)', 'seeded(fed.seed, "distil", k)',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[fedsdd-t]",
         "the same dropout in every round"),
        ('seeded(fed.seed, "distil", t, k)', 'seeded(fed.seed, "distil", t)',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[fedsdd-i]",
         "the same dropout in every global model"),
    ],
    "algorithms/fedsdd_ablations.py": [
        ('if students != "none":', 'if students != "none" and t > warmup_rounds:',
         "test_fedsdd.py::test_the_ring_is_filled_in_warm_up_rounds_too", "nothing is remembered of the warm-up rounds"),
        ("[*ring, ensemble_logits(member_logits)]", "[ensemble_logits(member_logits), *ring]",
         "test_fedsdd.py::test_an_ensemble_of_clients_averages_the_logits_of_all_clients_of_all_groups",
         "the ring keeps the oldest rounds"),
        ("and t > warmup_rounds:", "and t >= warmup_rounds:",
         "test_fedsdd.py::test_warm_up_rounds_have_no_distillation", "warm-up ends a round early"),
    ],

    # ------------------------------------------------------------------------------------------------- logits travel
    "algorithms/fedmd.py": [
        ("        return client_logits.mean(0)", "        return client_logits.softmax(-1).mean(0)",
         "test_fedmd.py::test_consensus_is_of_logits_not_of_probabilities", "a consensus of probabilities"),
        ("weights / weights.sum(), client_logits", "weights, client_logits",
         "test_fedmd.py::test_a_weighted_consensus_by_hand", "weights that do not sum to 1"),
        ("(logits - consensus_logits.detach()).abs().mean()", "(logits - consensus_logits.detach()).square().mean()",
         "test_fedmd.py::test_digest_loss_is_the_mean_absolute_error", "the squared error"),
        ("(logits - consensus_logits.detach())", "(logits.softmax(-1) - consensus_logits.detach().softmax(-1))",
         "test_fedmd.py::test_digest_loss_is_of_raw_logits_a_shift_counts", "a softmax before the difference"),
        ("consensus_logits.detach()", "consensus_logits",
         "test_fedmd.py::test_the_gradient_of_digest_is_a_sign_and_the_consensus_gets_none", "the consensus gets a gradient"),
        ('stream(fed.seed, "subset", t)', 'stream(fed.seed, "subset")',
         "test_fedmd.py::test_the_subset_of_a_round_is_drawn_anew_from_the_rounds_stream", "the same public subset in every round"),
        ("consensus_logits[places]", "consensus_logits[:len(places)]",
         "test_fedmd.py::test_fedmd_round_by_hand", "the consensus on other images"),
        ('"optimizer": party["revisit"]', '"optimizer": party["digest"]',
         "test_fedmd.py::test_fedmd_round_by_hand", "one optimiser for digest and revisit"),
        ("else weights[i] for i in valid]", "else weights[i] for i in range(len(valid))]",
         "test_fedmd.py::test_weights_stay_with_their_parties_when_one_is_not_finite",
         "weights by place among those that are heard"),
    ],
    "algorithms/fedmd_transfer.py": [
        ("fed.validation if early_stopping else None", "fed.test if early_stopping else None",
         "test_fedmd.py::test_transfer_never_sees_a_test_set", "early stopping on the test set", "FedMD's code"),
        ('best, best_epoch = float("-inf"), 0', "best, best_epoch = 0.0, 0",
         "test_fedmd.py::test_a_first_accuracy_of_zero_is_the_best_so_far", "an accuracy of 0 is never the best"),
        ("epoch - best_epoch >= patience", "epoch - best_epoch > patience",
         "test_fedmd.py::test_early_stopping_keeps_the_last_weights", "one epoch more than patience allows"),
        ("if reached > best + min_delta:", "if reached > best:",
         "test_fedmd.py::test_each_stage_counts_growth_beyond_its_own_min_delta",
         "any growth counts"),
        ("PUBLIC_STAGE = dict(min_delta=0.005,", "PUBLIC_STAGE = dict(min_delta=0.001,",
         "test_fedmd.py::test_each_stage_counts_growth_beyond_its_own_min_delta",
         "the first stage takes the second one's min_delta"),
        ("PRIVATE_STAGE = dict(min_delta=0.001,", "PRIVATE_STAGE = dict(min_delta=0.005,",
         "test_fedmd.py::test_each_stage_counts_growth_beyond_its_own_min_delta",
         "the second stage takes the first one's min_delta"),
        ("isinstance(module, nn.Linear)][-1]", "isinstance(module, nn.Linear)][0]",
         "test_fedmd.py::test_the_penalty_is_of_the_last_layers_kernel_alone", "the penalty is on the first layer"),
    ],
    "algorithms/fedmd_pooled.py": [
        ("Data(*(torch.cat(parts) for parts in zip(*fed.private)))", "fed.private[0]",
         "test_fedmd.py::test_pooled_is_public_training_and_then_epochs", "one party's data for everyone's"),
        ("partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay)",
         "partial(OPTIMIZERS['adam'], lr=lr, weight_decay=weight_decay)",
         "test_command_line.py::"
         "test_optimizer_and_weight_decay_reach_every_network[fedmd-pooled-sgd]",
         "Adam whatever is asked for"),
    ],
    "algorithms/dsfl.py": [
        ("(client_probs.mean(0) / temperature).softmax(-1)", "(client_probs / temperature).softmax(-1).mean(0)",
         "test_dsfl.py::test_era_sharpens_the_mean_of_the_probabilities_not_each_client", "each client sharpened, then the mean",
         "Flower's DS-FL"),
        ("(client_probs.mean(0) / temperature).softmax(-1)", "client_probs.mean(0).softmax(-1)",
         "test_dsfl.py::test_era_of_a_one_hot_mean_is_nearly_one_hot_by_hand", "no temperature", "AIJack's DS-FL"),
        ("predict_logits(fed, model, fed.public.images).softmax(-1)", "predict_logits(fed, model, fed.public.images)",
         "test_dsfl.py::test_dsfl_round_by_hand", "logits in the place of probabilities", "PFLlib's FD"),
        ("valid_probs, clients = finite(client_probs), trained", "valid_probs, clients = client_probs, trained",
         "test_logits.py::test_non_finite_logits_are_left_out[dsfl-run]", "an upload with nan is averaged"),
        ("if len(valid_probs):", "if len(valid_probs) > 1:",
         "test_logits.py::test_whoever_is_left_out_the_mean_is_of_the_others[2-dsfl-run]",
         "a single valid upload teaches nobody"),
        ("MIXED = True", "MIXED = False",
         "test_command_line.py::"
         "test_clients_may_have_different_networks_unless_one_model_goes_to_all[dsfl]",
         "clients with different networks are refused"),
    ],
    "algorithms/cronus.py": [
        ("kept = kept.scatter(0, farthest, False)", "kept = kept.clone()",
         "test_cronus.py::test_one_far_liar_is_left_out_on_each_sample_it_lies_on", "the filter leaves nobody out"),
        ("(num_clients - dropped, num_clients - 2 * dropped)", "(num_clients - dropped,)",
         "test_cronus.py::test_two_passes_by_hand", "one pass of two"),
        ("if left < num_clients / 2 + 1:", "if left < num_clients / 2:",
         "test_cronus.py::test_a_pass_that_leaves_fewer_than_a_half_and_one_is_not_made", "too few clients are left"),
        ("(deviation @ vectors[..., -1:])", "(deviation @ vectors[..., :1])",
         "test_cronus.py::test_robust_mean_by_slow_loop[8-3-0.3]", "the direction of the smallest variance"),
        ("scores = vectors[..., -1].square().T", "scores = vectors[..., -1].T",
         "test_cronus.py::test_robust_mean_by_slow_loop[8-30-0.3]", "liars on one side alone are far"),
        ("probs, 0.0).sum(0) / kept.sum(0)[:, None]", "probs, 0.0).sum(0) / len(probs)",
         "test_cronus.py::test_two_passes_by_hand", "who is left out still counts in the denominator"),
        ("if len(valid_probs):", "if len(valid_probs) > 1:",
         "test_logits.py::test_whoever_is_left_out_the_mean_is_of_the_others[2-cronus-run]",
         "a single valid upload teaches nobody"),
        ("@timed", "",
         "test_runs.py::test_a_rounds_parts_are_timed_and_none_takes_longer_than_the_round[cronus]",
         "the clients' second training is not timed"),
        ("partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)",
         "partial(OPTIMIZERS['amsgrad'], weight_decay=weight_decay)",
         "test_command_line.py::test_optimizer_and_weight_decay_reach_every_network[cronus-sgd]",
         "Adam whatever is asked for"),
    ],
    "algorithms/fedgem.py": [
        ("teacher_logits = valid_logits.mean(0)", "teacher_logits = valid_logits.softmax(-1).mean(0)",
         "test_fedgem.py::test_fedgem_round_by_hand", "the mean of probabilities for the mean of logits"),
        ("teacher_logits[rows], has_teacher[rows]", "teacher_logits[:len(rows)], has_teacher[rows]",
         "test_fedgem.py::test_fedgem_round_by_hand", "the teacher speaks of other images"),
        ("trained[i], server_logits, public_epochs", "trained[i], teacher_logits, public_epochs",
         "test_fedgem.py::test_clients_learn_from_the_final_server_model_of_fedgem", "clients learn from their own mean"),
        ("up=num_public, down=num_public)", "up=num_public, down=0)",
         "test_fedgem.py::test_all_rows_travel_both_ways_every_round", "the download is forgotten"),
    ],
    "algorithms/fedgems.py": [
        ("torch.special.entr(logits.softmax(-1)).sum(-1)", "torch.special.entr(logits.softmax(-1)).mean(-1)",
         "test_fedgems.py::test_eq3_by_hand", "the mean over the classes"),
        ("torch.special.entr(logits.softmax(-1)).sum(-1)", "-(logits.softmax(-1) * logits.softmax(-1).log()).sum(-1)",
         "test_fedgems.py::test_eq3_certain_logits_have_entropy_zero", "0 times the logarithm of 0", "AIJack's FedGEMS"),
        ("(client_logits.argmax(-1) == labels) & torch", "torch",
         "test_fedgems.py::test_reliable_is_who_predicts_the_label_by_hand", "who is wrong is trusted"),
        (" & torch.isfinite(client_logits).all(-1)", "",
         "test_fedgems.py::test_a_logit_that_is_not_finite_is_never_right", "infinity can be right"),
        ('masked_fill(~reliable, float("-inf"))', "masked_fill(~reliable, 0.0)",
         "test_fedgems.py::test_eq4_unreliable_client_gets_exactly_zero", "masked with 0: the softmax gives it exp(0)",
         "AIJack's FedGEMS"),
        ("1 / entropy(client_logits).clamp(min=1e-6)", "1 / entropy(client_logits)",
         "test_fedgems.py::test_eq4_certain_clients_share_equally", "1 / 0", "AIJack's FedGEMS"),
        ("1 / entropy(client_logits).clamp(min=1e-6)", "1 / entropy(client_logits).clamp(min=1e-3)",
         "test_fedgems.py"
         "::test_eq4_above_a_millionth_of_a_nat_the_more_certain_client_has_all_the_weight",
         "H is at least a thousandth"),
        ("1 / entropy(client_logits)", "entropy(client_logits)",
         "test_fedgems.py::test_eq4_by_hand", "H for 1/H: the least certain counts most"),
        ("torch.where(reliable, weights, 0.0)", "weights",
         "test_fedgems.py::test_eq4_weights_sum_to_1_or_are_0_where_nobody_is_reliable", "nan where nobody is right"),
        ("torch.where(weights > 0, weights * client_logits, 0.0).sum(0)", "(weights * client_logits).sum(0)",
         "test_fedgems.py::test_eq4_eq5_nothing_that_is_not_finite_reaches_weights_or_fused_logits", "0 times nan"),
        ("torch.where(weights > 0, weights * client_logits, 0.0).sum(0)", "(weights * client_logits.softmax(-1)).sum(0).log()",
         "test_fedgems.py::test_eq5_fused_logits_by_hand", "probabilities are mixed, not logits"),
        ("torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce)",
         "torch.where(has_teacher, (1 - epsilon) * ce + epsilon * kl, ce)",
         "test_fedgems.py::test_eq2_by_hand", "epsilon on the wrong term"),
        ("torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce).mean()",
         "(epsilon * ce + (1 - epsilon) * kl)[has_teacher].mean() + ce[~has_teacher].mean()",
         "test_fedgems.py::test_server_loss_is_one_mean_over_mixed_cases", "the means of the cases are added", "AIJack's FedGEMS"),
        ("torch.where(has_teacher[:, None], teacher_logits, 0.0)", "teacher_logits",
         "test_fedgems.py::test_rows_without_a_teacher_may_hold_anything", "nan comes through the branch not taken"),
        ("kl_divergence(server_logits, logits)", "kl_divergence(logits, server_logits)",
         "test_fedgems.py::test_eq6_by_hand", "KL(client || server)", "AIJack's FedGEMS"),
        ("checked_logits = predict_logits(fed, model, images[rows])",
         "checked_logits = forward(fed, model.train(), images[rows]).detach()",
         "test_fedgems.py::test_selection_is_in_eval_mode", "the server judges itself in train mode", "AIJack's FedGEMS"),
        ("checked_logits = predict_logits(fed, model, images[rows])",
         "checked_logits = predict_logits(fed, model, fed.augment(images[rows], stream(0)) if fed.augment else images[rows])",
         "test_fedgems.py::test_selection_is_in_eval_mode", "the server judges itself on augmented images"),
        ("pool.logits[rows[correct]] = checked_logits[correct]", "pool.logits[rows] = checked_logits",
         "test_fedgems.py::test_the_pool_holds_the_logits_that_were_judged_right", "wrong logits go to the pool"),
        ("pool.logits[rows[correct]] = checked_logits[correct]",
         "pool.logits[rows[correct & ~pool.mask[rows]]] = checked_logits[correct & ~pool.mask[rows]]",
         "test_fedgems.py::test_the_pool_holds_the_logits_that_were_judged_right", "the pool keeps the oldest logits"),
        ("has_teacher = from_pool | from_clients", "has_teacher = from_pool | requests",
         "test_fedgems.py::test_nobody_right_is_plain_cross_entropy", "where nobody is right the uniform distribution teaches"),
        ("pool.logits[rows], fused_logits[rows])", "pool.logits[rows], fused_logits[:len(rows)])",
         "test_fedgems.py::test_a_round_is_the_papers_algorithm[one network]", "the clients' logits of other images"),
        ("requested[rows[requests]] = True", "requested[rows[from_clients]] = True",
         "test_fedgems.py::test_the_ledger_counts_exactly_the_rows_asked", "uploads of which none was right are not paid"),
        ("not is_finite(logits[requested])", "not is_finite(logits)",
         "test_fedgems.py::test_an_upload_is_bad_only_for_samples_that_were_requested",
         "an upload is bad for logits that never travel"),
        ("rows = torch.nonzero(~pool.mask)[:, 0]", "rows = torch.arange(len(labels))",
         "test_fedgems.py::test_clients_predict_exactly_the_rows_outside_the_pool", "clients predict what the pool holds"),
        ("int(requested.sum()), len(fusion.requested)", "int(requested.sum()), int(requested.sum())",
         "test_communication.py::test_fedgems_pays_up_for_what_was_asked_and_down_for_everything",
         "only what was asked comes down"),
        ('seeded(fed.seed, "server", t)', 'seeded(fed.seed, "server")',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[fedgems-t]",
         "the same dropout in every round"),
    ],
    "algorithms/fedgems_ablations.py": [
        ("~alone & pool.mask[rows] & self_distillation", "~alone & (pool.mask[rows] | correct) & self_distillation",
         "test_fedgems.py::test_ablations_move_samples_between_cases[self_training]", "the pool is filled before it is looked at"),
        ('seeded(fed.seed, "server", t)', 'seeded(fed.seed, "server")',
         "test_common.py::"
         "test_another_round_client_or_model_draws_other_dropout[fedgems-ablations-t]",
         "the same dropout in every round"),
        ("partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)",
         "partial(OPTIMIZERS['amsgrad'], weight_decay=weight_decay)",
         "test_command_line.py::"
         "test_optimizer_and_weight_decay_reach_every_network[fedgems-ablations-sgd]",
         "Adam whatever is asked for"),
    ],

    # --------------------------------------------------------------------------------------------- feature maps travel
    "algorithms/fedgkt.py": [
        ("distillation_loss(client_logits, logits, temperature) if distill",
         "distillation_loss(logits, client_logits, temperature) if distill",
         "test_fedgkt.py::test_eq6_by_hand", "the client learns in the server's loss"),
        ("temperature) if distill else ce", "temperature)",
         "test_fedgkt.py::test_eq6_without_distillation_is_cross_entropy_alone", "the server always distils"),
        ("return ce + distillation_loss(server_logits, logits, temperature)",
         "return ce + distillation_loss(logits, server_logits, temperature)",
         "test_fedgkt.py::test_eq7_by_hand", "the server learns in the client's loss"),
        ("extract(fed, model, images, dtype)",
         "extract(fed, model, fed.augment(images, stream(0)) if fed.augment else images, dtype)",
         "test_fedgkt.py::test_extraction_is_of_clean_images", "feature maps of augmented images", "FedML's FedGKT"),
        ("server_logits[rows] if has_teacher", "server_logits[:len(rows)] if has_teacher",
         "test_fedgkt.py::test_permuting_a_clients_rows_permutes_its_server_logits", "the server's logits of other images",
         "FedML's FedGKT"),
        ("labels[rows], client_logits[rows], temperature,", "labels[rows], client_logits[:len(rows)], temperature,",
         "test_fedgkt.py::test_two_rounds_against_algorithm_1", "the clients' logits of other images"),
        ("predict_logits(fed, model, features.float(), CHUNK)", "predict_logits(fed, model, features.float(), CHUNK).flip(0)",
         "test_fedgkt.py::test_server_logits_are_of_the_trained_server", "the answers' rows are in another order"),
        ("predict_logits(fed, model, features.float(), CHUNK)", "forward(fed, model.train(), features.float()).detach()",
         "test_fedgkt.py::test_server_logits_are_of_the_trained_server", "the server answers in train mode", "FedML's FedGKT"),
        ("for _ in range(server_epochs):", "for _ in range(1):",
         "test_fedgkt.py::test_two_rounds_against_algorithm_1", "one epoch on the server"),
        ("stacked_scores(fed, clients, server, fed.validation)", "stacked_scores(fed, clients, server, fed.test)",
         "test_fedgkt.py::test_b8_the_test_set_has_no_part_in_the_rate_nor_in_any_network", "the rate falls by the test set",
         "FedML's FedGKT"),
        ('return snapshot(model, optimizer) | {"plateau"', 'return server | {"plateau"',
         "test_fedgkt.py::test_the_rate_falls_when_validation_stands_still", "the fallen rate does not reach the optimiser"),
        ("patience=lr_patience, threshold=0", "patience=lr_patience - 1, threshold=0",
         "test_fedgkt.py::test_the_rate_falls_when_validation_stands_still", "the rate falls a round early"),
        ('seeded(fed.seed, "server", event)', 'seeded(fed.seed, "server")',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[fedgkt-t]",
         "the same dropout in every training of the server"),
    ],
    "algorithms/fedgkt_async.py": [
        ("if arrival == clock]", "if arrival == clock][:1]",
         "test_fedgkt.py::test_asynchronous_rounds_against_a_slow_queue", "of those who arrive together one is heard"),
        ("trainings * max(latencies)", "trainings * sum(latencies) / len(latencies)",
         "test_fedgkt.py::test_if_all_waited_each_round_would_take_as_long_as_its_slowest_client",
         "who waits for all waits for the mean"),
        ('round((client["trainings"] + 1) * latency, 9)', '(client["trainings"] + 1) * latency',
         "test_fedgkt.py::test_uploads_meet_although_their_moments_are_different_floats",
         "uploads that arrive together miss each other"),
    ],
    "algorithms/fedgkt_features.py": [
        ("    model.eval()", "    model.eval(), torch.set_grad_enabled(True)",
         "test_fedgkt.py::test_b15_extraction_holds_no_graph", "feature maps drag their graph along", "FedML's FedGKT"),
        ("    model.eval()", "    model.train()",
         "test_fedgkt.py::test_extraction_is_in_eval_mode_and_leaves_batchnorm_and_the_mode_alone", "feature maps in train mode"),
        ("accuracy(torch.cat(server_logits), data.labels)",
         "sum(map(accuracy, server_logits, data.labels.split(CHUNK))) / len(server_logits)",
         "test_fedgkt.py::test_b4_accuracy_counts_samples_not_batches", "the mean of the batches' accuracies", "FedML's FedGKT"),
    ],
    "algorithms/split_learning.py": [
        ("features.backward(sent.grad)", "features.backward(sent)",
         "test_split_learning.py::test_a_batch_by_slow_loop", "the map itself comes back, not its gradient"),
        ("edge_optimizer.step()", "pass",
         "test_split_learning.py::test_split_learning_is_training_the_stacked_network", "the edge's half never learns"),
        ("edge_optimizer.zero_grad()", "pass",
         "test_split_learning.py::test_split_learning_is_training_the_stacked_network", "gradients pile up on the edge"),
        ('"bytes_down": sent_bytes', '"bytes_down": 0',
         "test_split_learning.py::test_eq12_is_what_the_metrics_of_a_round_add_up_to", "the download is forgotten"),
        ("state = copy.deepcopy(", "state = (",
         "test_split_learning.py::test_a_later_round_does_not_change_a_state", "a state that the next round changes"),
        ('seeded(fed.seed, "local", t, i)', 'seeded(fed.seed, "local", i)',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[split-learning-t]",
         "the same dropout in every round"),
        ('seeded(fed.seed, "local", t, i)', 'seeded(fed.seed, "local", t)',
         "test_common.py::test_another_round_client_or_model_draws_other_dropout[split-learning-i]",
         "the same dropout in every client"),
        ("rounds: int = 200", "rounds: int = 100",
         "test_command_line.py::test_defaults_are_the_papers[split-learning]",
         "half of the paper's rounds by default"),
        ("local_epochs: int = 1,", "local_epochs: int = 5,",
         "test_command_line.py::test_defaults_are_the_papers[split-learning]",
         "five passes a round by default"),
        ("weight_decay: float = 1e-4", "weight_decay: float = 0.0",
         "test_command_line.py::test_defaults_are_the_papers[split-learning]",
         "no weight decay by default"),
    ],
    "algorithms/baselines.py": [
        ("(union(*fed.private), local_epochs)", "(fed.private[0], local_epochs)",
         "test_baselines.py::test_centralized_is_one_long_training", "one client's data for everyone's"),
        ("union(fed.public, *fed.private)", "union(*fed.private)",
         "test_baselines.py::test_centralized_all_trains_server_and_clients_on_public_and_all_private_samples", "no public data"),
        ("[(private, local_epochs), (fed.public, public_epochs)]", "[(fed.public, public_epochs), (private, local_epochs)]",
         "test_baselines.py::test_public_private_makes_private_steps_then_public_ones", "public steps first"),
        ("restore(saved, model", "restore(saved | {'optimizer': None}, model",
         "test_baselines.py::test_centralized_is_one_long_training", "a new optimiser in every round"),
        ("fed.client_model(i, init=i)", "fed.client_model(i)",
         "test_baselines.py::test_clients_start_from_weights_of_their_own", "all clients start alike"),
        ("MIXED = True", "MIXED = False",
         "test_command_line.py::"
         "test_clients_may_have_different_networks_unless_one_model_goes_to_all[centralized]",
         "clients with different networks are refused"),
    ],

    # -------------------------------------------------------------------------------------------------------- attacks
    "attacks.py": [
        ("return benign.mean(0) + theta", "return benign.sum(0) / (len(benign) + 1) + theta",
         "test_attacks.py::test_eq7_paf_by_hand", "divided by all clients"),
        ("benign.std(0, correction=0)", "benign.std(0)",
         "test_attacks.py::test_eq10_lie_by_hand", "the sample's standard deviation, nan for one client"),
        ("(benign.sum(0) + far) / (len(benign) + 1)", "(benign.sum(0) + far) / len(benign)",
         "test_attacks.py::test_eq11_ofom_by_hand", "n + 1 uploads divided by n"),
        ("math.floor(num_clients / 2 + 1) - num_attackers", "math.floor((num_clients - num_attackers) / 2 + 1)",
         "test_attacks.py::test_eq9_lie_z", "a majority of the benign alone"),
        ("(benign - supporters) / benign, 0.001), 0.999)", "(benign - supporters) / num_clients, 0.001), 0.999)",
         "test_attacks.py::test_eq9_lie_z", "all clients in the denominator"),
        ('torch.from_numpy(stream("theta", source).standard_normal(shape))', "torch.ones(shape)",
         "test_attacks.py::test_the_attack_changes_the_softmax_where_a_constant_would_not", "a constant, which no softmax notices"),
        ("benign = uploads[[j for j in range(len(uploads)) if j not in present]]", "benign = uploads",
         "test_attacks.py::test_only_the_attackers_uploads_change", "attackers imitate themselves"),
        ("uploads = uploads.clone()", "uploads = uploads[:]",
         "test_attacks.py::test_b20_the_attack_changes_none_of_its_inputs", "the clients' own tensors are overwritten",
         "FedML's byzantine attack"),
        ("if not present or not benign.numel():", "if t == 1 or not present or not benign.numel():",
         "test_attacks.py::test_b19_the_attack_fires_in_every_round", "the attack sleeps", "FedML's lazy worker"),
        ("piece.clamp(min=0) if", "piece if",
         "test_attacks.py::test_lie_on_models_never_gives_a_negative_variance", "a running variance below 0"),
    ],

    # -------------------------------------------------------------------------------------------------------- partition
    "partition.py": [
        ("np.array_split(rng.permutation(len(labels)), num_clients)", "np.array_split(np.arange(len(labels)), num_clients)",
         "test_partition.py::test_iid_class_shares_are_alike", "not shuffled: a client gets one class"),
        ("np.array_split(rng.permutation(len(labels)), num_clients)",
         "np.array_split(np.random.default_rng(10).permutation(len(labels)), num_clients)",
         "test_partition.py::test_b21_another_seed_gives_other_parts[iid]", "the seed is always 10", "FedML's partition_data"),
        (" shares = _dirichlet_shares(alpha, len(classes), num_clients, rng)",
         " shares = _dirichlet_shares(alpha, 1, num_clients, rng).repeat(len(classes), 0)",
         "test_partition.py::test_dirichlet_shares_have_the_variance_of_the_distribution", "one draw of shares for all classes"),
        ("np.full(num_clients, min(alpha, 1e9))", "np.full(num_clients, min(alpha, 1e9) / num_clients)",
         "test_partition.py::test_dirichlet_shares_have_the_variance_of_the_distribution", "alpha over the number of clients"),
        ("shares = shares * below_mean", "shares = shares * 1",
         "test_partition.py::test_balanced_a_client_with_its_mean_share_gets_nothing_of_later_classes", "no balance"),
        ("shares[:-1].cumsum() / shares.sum() * count", "shares[:-1].cumsum() * count",
         "test_partition.py::test_balanced_a_client_with_its_mean_share_gets_nothing_of_later_classes",
         "the last client gets the shares of the full clients"),
        ("min_size = len(rows) // (2 * size)", "min_size = 0",
         "test_partition.py::test_equal_deals_every_client_half_the_mean_size_before_the_cut",
         "a client may be dealt nothing before the cut"),
        ("np.array_split(np.concatenate(assigned), num_clients)", "assigned",
         "test_partition.py::test_b40_equal_sizes_differ_by_at_most_one_also_with_fewer_than_ten_clients",
         "not cut into equal chunks"),
        ("names, writers = np.unique(writers, return_inverse=True)",
         "names, writers = np.arange(len(writers)), np.arange(len(writers))",
         "test_partition.py::test_no_writer_is_split_between_clients", "samples are assigned, not writers"),
        ("rng.permutation(rows)[:needed].reshape", "rng.choice(rows, needed).reshape",
         "test_partition.py::test_no_sample_is_in_two_parts[few_per_class]", "drawn with replacement"),
        ("np.array_split(rows, len(sharers))", "[rows] * len(sharers)",
         "test_partition.py::test_no_sample_is_in_two_parts[by_subclass]", "clients with one subclass share images",
         "FedMD's code"),
        ("rng.permutation(np.unique(subclass[superclass == s]))", "list(dict.fromkeys(subclass[superclass == s].tolist()))",
         "test_partition.py::test_b27_by_subclass_is_fixed_by_the_generator_alone", "the order of the subclasses is not random",
         "FedMD's code"),
        ("[87, 2, 131, 1325, 0, 1117, 704, 0, 0, 0]", "[87, 2, 131, 1325, 1117, 704, 0, 0, 0, 0]",
         "test_partition.py::test_fedgkt_table_6_as_printed_does_not_add_up_and_with_row_7_put_right_it_does",
         "the table as it is printed"),
        ("* len(rows) / FEDGKT_TABLE_6[:, c].sum()", "* len(labels) / FEDGKT_TABLE_6.sum()",
         "test_partition.py::test_fedgkt_table6_takes_each_class_by_its_own_size", "all classes are assumed to be equally large"),
        ("        rows = rng.permutation(np.flatnonzero(labels == c))", "        rows = np.flatnonzero(labels == c)",
         "test_partition.py::test_fedgkt_table6_draws_within_a_class_from_all_of_its_samples", "the samples are not shuffled"),
    ],

    # -------------------------------------------------------------------- communication, secure sum
    "communication.py": [
        ("model.parameters()) * copies * num_clients", "model.parameters()) * num_clients",
         "test_communication.py::test_bytes_are_proportional_to_clients_and_copies", "SCAFFOLD's controls travel for nothing"),
        ("return number_bytes * sum(p.numel() for p in model.parameters())",
         "return number_bytes * sum(p.numel() for p in model.state_dict().values())",
         "test_communication.py::test_fedavg_of_fedgems_resnet11_costs_what_the_paper_counts", "buffers are counted as parameters"),
        ("sum(weights_bytes(model, n, copies) for model, n in messages)",
         "sum(weights_bytes(model, 1, copies) for model, n in messages)",
         "test_communication.py::test_bytes_are_proportional_to_clients_and_copies", "one download for all clients"),
        ("return FLOAT_BYTES * num_samples * num_classes * num_clients", "return FLOAT_BYTES * num_samples * num_classes",
         "test_communication.py::test_logits_bytes_by_hand", "one client's bytes for all"),
        ('"bytes_down": logits_bytes(down, num_classes, num_clients)', '"bytes_down": 0',
         "test_communication.py::test_fedgems_table_4_is_whole_rounds_up_and_down[fedgem-3-91.55]", "the download is forgotten"),
        ("(number_bytes * feature_numbers + FLOAT_BYTES * num_classes)", "(number_bytes * feature_numbers)",
         "test_communication.py::test_eq13_features_bytes_by_hand", "the soft labels are forgotten"),
        ("num_samples * 2 * FLOAT_BYTES * feature_numbers", "num_samples * FLOAT_BYTES * feature_numbers",
         "test_communication.py::test_eq12_split_learning_bytes_by_hand", "the gradients' way back is forgotten"),
        ("FLOAT_BYTES * num_answered * num_classes", "FLOAT_BYTES * num_samples * num_classes",
         "test_communication.py::test_features_ledger_by_hand", "who was left out is answered all the same"),
        ('row.get("bytes_up", 0) + row.get("bytes_down", 0)', 'row.get("bytes_up", 0)',
         "test_communication.py::test_bytes_until_by_hand", "uploads alone"),
        ("max(training, distill_seconds + group_seconds[0])", "max(training, distill_seconds)",
         "test_fedsdd.py::test_round_seconds_is_what_a_schedule_of_many_rounds_takes", "the main model needs no training"),
        ("module.weight[0].numel()", "module.weight.numel()",
         "test_communication.py::test_network_cost_by_hand_on_a_tiny_convolution", "each output is charged for all kernels"),
    ],
    "secure_sum.py": [
        ("w.double().cpu() * weight", "w.cpu() * weight",
         "test_secure_sum.py::test_a_weighted_model_is_sent_exactly_where_float32_would_round_it",
         "n_i w_i is rounded to float32"),
        ('sums["model." + name].double()', 'sums["model." + name]',
         "test_secure_sum.py::test_an_average_is_exact_where_float32_would_round_it",
         "the sum is rounded to float32"),
    ],
}
MUTANTS = [Mutant(file, *fields) for file, table in TABLE.items() for fields in table]


@functools.cache
def functions_of(file):
    """[(name, first line after the docstring, last line)] of the functions of a file."""
    functions = [node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    return [(f.name, f.body[ast.get_docstring(f) is not None].lineno, f.end_lineno) for f in functions]


def place_of(mutant):
    """(the number of its line, the name of the function whose body this is a line of, or "")."""
    before, _, _ = (ROOT / mutant.file).read_text().partition(mutant.old)
    line = before.count("\n") + 1
    return line, next((name for name, first, last in functions_of(mutant.file) if first <= line <= last), "")


def mutated(text, mutant):
    """The text of the file with the mistake in it."""
    if text.count(mutant.old) != 1 or "\n" in mutant.old + mutant.new:
        raise SystemExit(f"{mutant.file} holds {text.count(mutant.old)} times what should be there once, in one line: {mutant.old}")
    return text.replace(mutant.old, mutant.new)


class Failures:
    """A plugin of pytest that keeps what was raised: [(test, phase, exception)]."""

    def __init__(self):
        self.seen = []

    def pytest_runtest_makereport(self, item, call):
        if call.excinfo:
            self.seen.append((item.nodeid, call.when, call.excinfo.value))


def verdict(copy, tests):
    """What pytest makes of the tests in a copy, whose modules are imported here: "SURVIVED", "caught", or "broken: why"."""
    os.chdir(copy)
    sys.path[:] = [copy] + [path for path in sys.path if Path(path).resolve() not in (ROOT, ROOT / "tests")]
    sys.dont_write_bytecode = True   # a stale one would hide the next mistake
    gc.freeze()                      # pytest collects garbage when it ends, and torch is large
    failures = Failures()
    status = pytest.main(["-x", "--assert=plain", "--tb=short", "-p", "no:cacheprovider", *tests], plugins=[failures])
    if status == 0 and not failures.seen:
        return "SURVIVED"
    for test, phase, error in failures.seen[:1]:
        by_assertion = phase == "call" and isinstance(error, (AssertionError, pytest.fail.Exception))
        return "caught" if by_assertion else f"broken: {type(error).__name__} in the {phase} of {test}"
    return f"broken: pytest ran no test, status {int(status)}"


def fork(copy, tests):
    """(a child that runs the tests in a copy, where its verdict can be read). What it prints goes to the file copy + ".out"."""
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.close(write)
        return child, read           # which is at its end when the child is
    try:
        signal.alarm(LIMIT)
        output = os.open(copy + ".out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        os.write(write, verdict(copy, tests)[:1000].encode())
    finally:
        sys.stdout.flush()
        os._exit(0)                  # whatever happened: nothing of the parent's is done twice


def verdicts(mutants, copies):
    """Yields (mutant, verdict) as they come: each in a child of its own, as many at a time as there are copies."""
    waiting, running = list(mutants), {}
    while waiting or running:
        while waiting and copies:
            mutant, copy = waiting.pop(0), copies.pop()
            path = Path(copy, mutant.file)
            text = path.read_text()
            path.write_text(mutated(text, mutant))
            child, read = fork(copy, [f"tests/{mutant.test}"])
            running[child] = mutant, copy, path, text, read
        mutant, copy, path, text, read = running.pop(os.wait()[0])
        path.write_text(text)
        copies.append(copy)
        yield mutant, os.read(read, 1000).decode() or f"broken: no answer within {LIMIT} s"
        os.close(read)


def others(folder, names):
    """What a copy does without: all but code, texts and tests."""
    return [name for name in names if name not in ("algorithms", "tests") and not name.endswith((".py", ".toml", ".md"))]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th only")
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this text in file, function or words")
    parser.add_argument("--list", action="store_true", help="show them, break nothing")
    args = parser.parse_args(argv)
    chosen = [m for m in MUTANTS if args.only.lower() in f"{m.file} {place_of(m)[1]} {m.what} {m.whose}".lower()]
    chosen = chosen[::max(1, args.every)]
    if not chosen:                   # without a name pytest would run every test there is
        parser.error(f"no mistake has {args.only!r} in its file, function or words")
    titles = {m: f"{m.file}:{place_of(m)[0]}  {m.what}{m.whose and f' (as {m.whose})'}" for m in chosen}
    if args.list:
        for m in chosen:
            print(f"{titles[m]}\n    {m.old}\n    {m.new}\n    tests/{m.test}")
        return 0

    start, count = time.perf_counter(), {"caught": 0, "SURVIVED": 0, "broken": 0}
    os.environ.update(OMP_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="")
    import numpy, torch._dynamo  # noqa: E401, F401         once, for all children; an optimiser's first step needs the second
    with tempfile.TemporaryDirectory() as folder:
        copies = [shutil.copytree(ROOT, f"{folder}/{k}", ignore=others) for k in range(WORKERS)]
        child, read = fork(copies[0], sorted({f"tests/{m.test}" for m in chosen}))
        os.waitpid(child, 0)
        if os.read(read, 1000) != b"SURVIVED":
            print(Path(copies[0] + ".out").read_text() + "nothing is broken yet, and not all of the named tests pass")
            return 1
        for m, result in verdicts(chosen, copies):
            count[result.split(":")[0]] += 1
            print(f"{titles[m]}  {m.test}  {result}")
    print(f"tried {len(chosen)}, caught {count['caught']}, survived {count['SURVIVED']}, broken {count['broken']}, "
          f"in {time.perf_counter() - start:.0f} s")
    return int(count["caught"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
