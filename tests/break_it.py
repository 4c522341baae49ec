"""Break it: mistakes of one line, each with the test that notices it.

For a reader: pick a line of TABLE, make the change by hand, predict which test fails and with which
numbers, then look:
    python tests/break_it.py --list --only fedgems            # what there is to break
    python -m pytest tests/test_fedgems.py::test_eq4_unreliable_client_gets_exactly_zero
    git checkout algorithms                                   # make it whole again
For the tests: a mistake that none of them notices is a test that is missing.
    python tests/break_it.py                                  # all, in copies; a minute or two
    python tests/break_it.py --every 10                       # a sample
    python tests/break_it.py --only "FedML"                   # by file, function or words

Each mistake replaces a part of one line that occurs once in its file. It is caught if the modules
can still be imported and an assertion of the named test fails; SURVIVED if the test passes; broken
if anything else happens, such as a NameError. The exit status is 0 if all are caught.
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
from collections import Counter
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


TABLE = {    # file: [(old, new, test, what, whose), ...]; "common::kl" is test_common.py::test_kl
    # ------------------------------------------------------------------------------- what all share
    "algorithms/equations.py": [
        ("teacher_log_probs.exp() * (teacher_log_probs - student_log_probs)",
         "student_log_probs.exp() * (student_log_probs - teacher_log_probs)",
         "common::kl_is_from_teacher_to_student_by_hand", "KL(student || teacher)",
         "AIJack's FedGEMS"),
        ("teacher_logits.detach() / temperature", "teacher_logits / temperature",
         "common::gradient_of_kl_is_q_minus_p_none_for_teacher", "the teacher learns too",
         "AIJack's FedGEMS"),
        ("teacher_logits.detach() / temperature", "teacher_logits.detach()",
         "common::distillation_is_t_squared_times_mean_kl", "the teacher is not softened",
         "FedDF's avg_probs"),
        ("F.log_softmax(teacher_logits.detach() / temperature, dim=-1)",
         "(F.softmax(teacher_logits.detach() / temperature, dim=-1) + 1e-7).log()",
         "common::kl_is_exact_for_equal_and_huge_logits", "1e-7 on the teacher", "FedML's FedGKT"),
        ("F.log_softmax(student_logits / temperature, dim=-1)",
         "F.softmax(student_logits / temperature, dim=-1).log()",
         "common::kl_is_exact_for_equal_and_huge_logits", "softmax underflows", "FedBE's code"),
        ("(teacher_log_probs - student_log_probs)).sum(-1)",
         "(teacher_log_probs - student_log_probs)).mean(-1)",
         "common::kl_is_from_teacher_to_student_by_hand",
         "the mean over classes: C times too small", "FedBE's code, PFLlib's FedKD"),
        ("return temperature**2 * kl", "return kl",
         "common::distillation_is_t_squared_times_mean_kl", "no temperature²", "FedDF's code"),
        ("return temperature**2 * kl", "return temperature * 2.0 * kl",
         "common::distillation_is_t_squared_times_mean_kl", "twice the temperature", "flearn"),
        ("kl_divergence(teacher_logits, student_logits, temperature).mean()",
         "kl_divergence(teacher_logits, student_logits, temperature).sum()",
         "common::distillation_is_t_squared_times_mean_kl", "the sum over the batch", "flearn"),
        ("shares = [w / sum(weights) for w in weights]", "shares = weights",
         "common::eq2_average_by_hand", "weights that do not sum to 1", "FedBE's code"),
        ("shares = [w / sum(weights) for w in weights]",
         "shares = [1 / len(weights) for w in weights]", "common::eq2_average_by_hand",
         "all models weigh the same", "FedDF's code"),
        ("sum(share * value for share, value in zip(shares, values))",
         "sum(share * value for share, value in zip(shares, values)) if 'running' not in name "
         "else values[-1]", "common::average_weights_averages_running_statistics",
         "the last client's running statistics", "FedDF's code"),
        ("if first.is_floating_point():", "if True:",
         "common::average_weights_keeps_counters_whole", "counters become fractions"),
        ("torch.stack(values).amax(0)", "values[0]",
         "common::the_average_of_one_model_is_a_copy_of_it", "a client's own tensor comes back"),
        ("-(target_probs.detach() * F.log_softmax",
         "-(F.log_softmax(target_probs.detach(), dim=-1) * F.log_softmax",
         "logits::soft_cross_entropy_by_hand", "the target is a log-softmax", "AIJack's DS-FL"),
        ("-(target_probs.detach() * F.log_softmax",
         "-(target_probs.detach().softmax(-1) * F.log_softmax",
         "logits::soft_cross_entropy_by_hand", "a softmax over probabilities", "AIJack's DS-FL"),
    ],
    "algorithms/common.py": [
        ("np.random.default_rng(np.random.SeedSequence(seed, ",
         "np.random.default_rng(np.random.SeedSequence(10, ",
         "common::only_equal_keys_give_equal_numbers", "the seed is always 10",
         "FedML's partition_data"),
        ("np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_words(keys)))",
         "np.random.default_rng([seed, *_words(keys)])",
         "common::only_equal_keys_give_equal_numbers", "a list loses the zeros at its end"),
        ("with torch.random.fork_rng(devices=gpus):", "with contextlib.nullcontext():",
         "common::seeded_leaves_the_global_generator_alone", "the global generator is reset",
         "FedML's _client_sampling"),
        ("max(1, round(participation * num_clients))", "max(1, int(participation * num_clients))",
         "common::participation_is_a_share_at_least_one_client", "the share is rounded down"),
        ("size=size, replace=False", "size=size",
         "common::participation_is_a_share_at_least_one_client", "a client is drawn twice"),
        ("bool((x.abs() < HUGE).all())", "bool((x.abs() < HUGE).any())",
         "logits::an_upload_with_one_bad_number_is_left_out[inf]", "one good number is enough"),
        ("if is_finite(upload)}", "if True}", "fedavg::non_finite_upload_is_left_out",
         "an upload with nan is averaged"),
    ],
    "algorithms/training.py": [
        ("        optimizer.param_groups[0][\"lr\"] = lr", "        pass",
         "plateau::a_kept_optimizer_takes_the_rate_of_the_round",
         "the fallen rate does not reach the optimizer"),
        ("torch.from_numpy(rng.permutation(num_samples)).to(device).split(batch_size)",
         "(b for b in torch.from_numpy(rng.permutation(num_samples)).to(device).split(batch_"
         "size) if len(b) == batch_size)", "common::every_pass_has_each_sample_once_in_a_new_order",
         "the last, smaller batch is dropped", "FedML's FedGKT, PFLlib"),
        ("torch.from_numpy(rng.permutation(num_samples))", "torch.arange(num_samples)",
         "common::every_pass_has_each_sample_once_in_a_new_order", "nothing is shuffled"),
        ("    model.eval()", "    model.train()", "common::prediction_is_pure_and_image_by_image",
         "teachers predict in train mode", "AIJack's FedGEMS and DS-FL, flearn"),
        ("model.train(was_training)", "model.train()",
         "common::prediction_is_pure_and_image_by_image", "ends in train mode", "FedDF's code"),
        ("load_model(fed, member)", "load_model(fed, members[0])",
         "common::predict_members_is_one_prediction_per_state", "every member is the first one"),
        ("    model.train()", "    model.eval()",
         "logits::a_student_sees_augmented_images_in_train_mode", "training in eval mode"),
        ("batch_loss = loss(forward(fed, model, batch), rows)",
         "batch_loss = loss(forward(fed, model, batch), rows.sort().values)",
         "logits::a_loss_is_given_the_rows_of_its_images", "targets of other images"),
        ('if saved["optimizer"] is not None:', "if False:",
         "logits::saved_and_restored_is_as_if_never_saved[adam-Adam]", "the optimiser forgets"),
        ('copy.deepcopy(saved["optimizer"])', 'saved["optimizer"]',
         "logits::saved_and_restored_is_as_if_never_saved[adam-Adam]", "a kept state changes"),
        ("partial(torch.optim.Adam, amsgrad=True)", "torch.optim.Adam",
         "baselines::amsgrad_is_the_papers_adam[amsgrad-True]", "plain Adam as AMSGrad"),
    ],
    "algorithms/evaluation.py": [
        ("combinations(predicted, 2)", "combinations(predicted[:2], 2)",
         "common::disagreement_by_hand", "only the first two members are compared"),
    ],
    # ------------------------------------------------------------------------------- weights travel
    "algorithms/fedavg.py": [
        ("sizes = [len(fed.private[i].labels) for i in uploads]",
         "sizes = [len(fed.private[i].labels) for i in range(len(uploads))]",
         "fedavg::fedavg_round_by_hand", "sizes by place among the active", "FedBE's code"),
        ("sizes = [len(fed.private[i].labels) for i in uploads]", "sizes = [1 for i in uploads]",
         "fedavg::two_rounds_against_a_slow_loop[run-0.0]",
         "clients count equally whatever their sizes", "FedDF's code"),
        ("fed.augment(images[rows], rng) if fed.augment else images[rows]", "images[rows]",
         "fedavg::black_images_leave_the_weights_to_the_weight_decay", "no augmentation"),
        ("model.parameters(), lr=lr, weight_decay=weight_decay)", "model.parameters(), lr=lr)",
         "fedavg::black_images_leave_the_weights_to_the_weight_decay", "no weight decay"),
        ("weights_ledger([(model, len(active))], COPIES)",
         "weights_ledger([(model, len(fed.private))], COPIES)",
         "fedavg::bytes_of_a_round_are_what_the_messages_hold", "who takes no part pays too"),
        ("lr=lr, optimizer=optimizer,", "lr=lr,",
         "contracts::optimizer_and_decay_reach_all_networks[fedavg]", "clients keep SGD"),
    ],
    "algorithms/fedprox.py": [
        ("return mu / 2 * squared_distance", "return mu * squared_distance",
         "fedavg::proximal_term_is_half_mu_squared_distance", "no half"),
        ("global_state[name].detach()).square().sum()", "global_state[name].detach()).norm()",
         "fedavg::proximal_gradient_is_mu_times_difference", "the distance, not its square",
         "FedBE's FedProx"),
        ("for name, w in model.named_parameters())",
         "for name, w in model.named_parameters() if 'weight' in name)",
         "fedavg::two_rounds_against_a_slow_loop[run-0.7]", "biases are free", "FedBE's FedProx"),
        ("model.named_parameters())", "model.state_dict().items())",
         "fedavg::proximal_term_ignores_buffers", "running statistics are held too"),
        ("global_state[name].detach()", "global_state[name]",
         "fedavg::proximal_gradient_is_mu_times_difference", "the global model gets a gradient"),
        (' + proximal_term(model, server["model"], mu)',
         " + proximal_term(model, model.state_dict(), mu)",
         "fedavg::two_rounds_against_a_slow_loop[run-0.7]", "clients are held near themselves"),
        ("if not uploads:", "if len(uploads) < 2:",
         "fedavg::a_federation_of_one_is_local_training[fedprox]", "a lone client is not heard"),
        ("optimizer=optimizer, weight_decay=weight_decay)", "optimizer=optimizer)",
         "contracts::optimizer_and_decay_reach_all_networks[fedprox]", "no weight decay"),
    ],
    "algorithms/scaffold.py": [
        ("grad - client_control + server_control", "grad + client_control - server_control",
         "scaffold::correction_is_servers_minus_own_control", "the correction has the wrong sign"),
        ("(global_params - local_params)", "(local_params - global_params)",
         "scaffold::new_control_by_hand", "the new control is negated", "pfl-research's SCAFFOLD"),
        ("/ (steps * lr)", "/ lr", "scaffold::new_control_by_hand", "K is missing"),
        ("/ (steps * lr)", "/ steps", "scaffold::new_control_by_hand", "no learning rate"),
        ("client_control - server_control + (global", "client_control + (global",
         "scaffold::new_control_is_the_mean_gradient_along_the_path", "no server's control"),
        ("steps += 1", "steps = local_epochs", "scaffold::scaffold_round_against_slow_loop",
         "K counts epochs, not steps"),
        ("w.grad = corrected_gradient(w.grad, ", "corrected_gradient(w.grad, ",
         "scaffold::scaffold_round_against_slow_loop", "computed, not used", "FedLab's SCAFFOLD"),
        ('"client_control": new_control}', '"client_control": client_control}',
         "scaffold::scaffold_round_against_slow_loop", "clients' controls stay 0",
         "FedML's and flearn's SCAFFOLD"),
        ('change = sum(upload["model"][name] - x for upload in uploads.values()) / len(uploads)',
         'change = list(uploads.values())[-1]["model"][name] - x',
         "scaffold::opposite_updates_cancel_and_one_is_one_nth",
         "only the last client's update counts", "FedML's SCAFFOLD"),
        ("= c + len(uploads) / len(fed.private) * change",
         "= len(uploads) / len(fed.private) * change", "scaffold::scaffold_round_against_slow_loop",
         "the server's control is replaced"),
        ("len(uploads) / len(fed.private) * change", "change",
         "scaffold::opposite_updates_cancel_and_one_is_one_nth",
         "divided by the active clients, not by all", "flearn's SCAFFOLD"),
        ("x + global_lr * change", "x + change", "scaffold::scaffold_round_against_slow_loop",
         "the global learning rate is missing"),
        ('server["client_controls"] | {i: ', "{i: ", "scaffold::scaffold_round_against_slow_loop",
         "who does not take part forgets its control"),
        ("torch.optim.SGD(model.parameters(), lr=lr)",
         "torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)",
         "scaffold::scaffold_round_against_slow_loop", "with momentum", "easyFL's SCAFFOLD"),
        ("COPIES = 2", "COPIES = 1", "scaffold::messages_are_twice_the_parameters",
         "controls travel for nothing"),
        ("w.detach(), steps, lr)", "w, steps, lr)", "scaffold::controls_hold_parameters_only",
         "controls drag their graph along"),
        ('seeded(fed.seed, "local", t, i)', 'seeded(fed.seed, "local", i)',
         "common::no_two_trainings_share_dropout[scaffold-t]", "the same dropout in every round"),
        ('seeded(fed.seed, "local", t, i)', 'seeded(fed.seed, "local", t)',
         "common::no_two_trainings_share_dropout[scaffold-i]", "the same dropout in every client"),
        ("MIXED = False", "MIXED = True",
         "command_line::networks_may_differ_unless_shared[scaffold]", "mixed networks pass"),
    ],
    # ------------------------------------------------------------------- distillation on the server
    "algorithms/feddf.py": [
        ("accuracies >= 1.2 / num_classes", "100 * accuracies >= 1.2 / num_classes",
         "feddf::drop_worst_by_hand", "percent against a share: nobody is dropped", "FedDF's code"),
        ("stays if stays.any() else torch.ones_like(stays)", "stays", "feddf::drop_worst_by_hand",
         "everyone is dropped", "FedDF's code"),
        ("client_members(fed, kept), fed.public.images",
         "client_members(fed, uploads), fed.public.images",
         "feddf::worse_than_a_guess_neither_counts_nor_teaches", "who is dropped still teaches"),
        ("teacher_logits = client_logits.mean(0)",
         "teacher_logits = client_logits.softmax(-1).mean(0).log()", "feddf::feddf_round_by_hand",
         "the mean of probabilities for the mean of logits"),
        ("server_batch_size=server_batch_size,", "server_batch_size=batch_size,",
         "feddf::feddf_round_by_hand", "the server takes the clients' batch size", "FedDF's code"),
        ("validation_accuracy = accuracy(logits, fed.validation.labels)",
         "validation_accuracy = accuracy(predict_logits(fed, model, fed.test.images), "
         "fed.test.labels)", "feddf::patience_ends_and_returns_the_best",
         "early stopping on the test set", "FedDF's code"),
        ("if validation_accuracy > best_accuracy:", "if validation_accuracy >= best_accuracy:",
         "feddf::a_tie_is_nothing_new", "a tie counts as better"),
        ("step - best_step >= patience", "step - best_step > patience",
         "feddf::patience_ends_and_returns_the_best", "one look more than patience allows"),
        ("best_state = copy.deepcopy(model.state_dict())", "best_state = model.state_dict()",
         "feddf::patience_ends_and_returns_the_best", "the best goes on learning"),
        ("model.train()", "model.eval()", "feddf::fewer_steps_than_a_look_still_return_a_student",
         "the student learns in eval mode"),
        ("best_accuracy, best_state, best_step = -1.0, None, 0",
         "best_accuracy, best_state, best_step = 0.0, None, 0",
         "feddf::a_student_wrong_at_every_look_is_that_of_the_first",
         "a student that is always wrong is never returned"),
        ("accuracy(client_logits.mean(0), fed.test.labels)",
         "accuracy(client_logits.softmax(-1).mean(0), fed.test.labels)",
         "feddf::the_ensemble_predicts_by_mean_logits", "the ensemble is of probabilities"),
        ("            if cosine:", "            if not cosine:",
         "feddf::the_papers_student_against_a_slow_adam", "the rate does not fall"),
        ('seeded(fed.seed, "distil", t, first_client)', 'seeded(fed.seed, "distil", first_client)',
         "common::no_two_trainings_share_dropout[feddf-t]", "the same dropout in every round"),
        ('seeded(fed.seed, "distil", t, first_client)', 'seeded(fed.seed, "distil", t)',
         "common::no_two_trainings_share_dropout[feddf-i]", "the same dropout in every network"),
        ("lr=lr, optimizer=optimizer,", "lr=lr,",
         "contracts::optimizer_and_decay_reach_all_networks[feddf]", "clients keep SGD"),
    ],
    "algorithms/fedbe.py": [
        ("(p * (w[name] - mean).square() for p, w in zip(weights, state_dicts))",
         "(sum(weights) / len(weights) * (w[name] - mean).square() for w in state_dicts)",
         "fedbe::gaussian_sample_by_hand", "the variance is not weighted", "FedBE's code"),
        ("mean + variance.sqrt() * torch", "mean + variance * torch",
         "fedbe::gaussian_sample_by_hand", "the variance for the standard deviation"),
        ("if not name.endswith(BUFFERS):", "if mean.is_floating_point():",
         "fedbe::samples_have_the_averages_buffers[gaussian_sample]",
         "running variances are drawn, maybe below 0", "FedBE's code"),
        ("[g * p for g, p in zip(gamma, weights)]", "gamma", "fedbe::dirichlet_sample_by_hand",
         "clients' sizes do not count", "FedBE's code"),
        ("return 2 * log_mean", "return log_mean",
         "fedbe::teacher_is_the_sharpened_mean_of_probabilities", "the teacher is not sharpened"),
        ("member_logits.log_softmax(-1).logsumexp(0)", "member_logits.mean(0)",
         "fedbe::teacher_is_the_sharpened_mean_of_probabilities", "the mean of logits"),
        ("members = [server, *(server | ", "members = [*(server | ",
         "fedbe::the_average_learns_from_the_ensemble_and_goes_on", "the average does not vote"),
        ("accuracy(member_logits.mean(0), fed.test.labels)",
         "accuracy(member_logits.softmax(-1).mean(0), fed.test.labels)",
         "fedbe::the_ensemble_predicts_by_mean_logits", "the ensemble is of probabilities"),
        ("sampled = draw_samples(fed, t, uploads, posterior, samples, concentration)",
         "sampled = draw_samples(fed, t, uploads, posterior, samples, 1.0)",
         "fedbe::the_average_learns_from_the_ensemble_and_goes_on", "run drops --concentration"),
        ("dirichlet_sample(client_states, sizes, rng, concentration)",
         "dirichlet_sample(client_states, sizes, rng)",
         "fedbe::the_average_learns_from_the_ensemble_and_goes_on", "draw drops --concentration"),
        ('seeded(fed.seed, "distil", t)', 'seeded(fed.seed, "distil")',
         "common::no_two_trainings_share_dropout[fedbe-t]", "the same dropout in every round"),
        ("concentration: float = 1.0", "concentration: float = 2.0",
         "command_line::defaults_are_the_papers[fedbe]", "another Dirichlet by default"),
    ],
    "algorithms/fedsdd.py": [
        ('stream(fed.seed, "mask", t, *pair)', 'stream(fed.seed, "mask", *pair)',
         "secure_sum::uploads_are_masked_anew_in_every_round", "the masks come back every round"),
        ("rng.permutation(active).tolist()", "list(active)",
         "fedsdd::groups_change_and_all_meet_the_main_model", "the same groups in every round"),
        ("sorted(shuffled[k::K]) for k in range(K)",
         "sorted(shuffled[k::K]) for k in reversed(range(K))",
         "fedsdd::group_clients_gives_the_first_groups_the_remainder", "the last ones are larger"),
        ("if not 1 <= K <= len(active):", "if not 1 <= K:",
         "fedsdd::more_models_than_active_clients_is_an_error", "a global model without clients"),
        ("return member_logits.mean(0)", "return member_logits.softmax(-1).mean(0).log()",
         "fedsdd::eq3_is_the_softmax_of_the_mean_logits", "the mean of the softmaxes"),
        ("[*ring, ensemble_logits(member_logits)][-R:]",
         "[*ring, ensemble_logits(member_logits)][-R - 1:]",
         "fedsdd::eq5_first_rounds_use_the_rounds_there_are", "one round too many in the ring"),
        ("averaged, fed.public.images", "start_models(fed, method, K), fed.public.images",
         "fedsdd::rounds_with_R_2_against_algorithm_1", "the ring holds the initial models"),
        ("teacher_logits = ensemble_logits(torch.stack(ring))",
         "teacher_logits = torch.stack(ring).sum(0) / R",
         "fedsdd::rounds_with_R_2_against_algorithm_1", "divided by R before there are R rounds"),
        ("test_ring = [*test_ring, ensemble_logits(member_logits)][-R:]",
         "test_ring = [ensemble_logits(member_logits)]",
         "fedsdd::rounds_with_R_2_against_algorithm_1", "the ensemble that predicts has one round"),
        ("if k % K == 0 else w", "if k >= 0 else w",
         "fedsdd::only_the_main_model_learns_from_the_ensemble", "all K models are distilled"),
        ("init=k)", "init=0)", "fedsdd::initial_models_differ_and_main_is_fedavgs",
         "K equal initial models"),
        ("global_models[group_of[i]]",
         "global_models[group_of[i]] | {x: c for x, c in global_models[0].items() if x == "
         "'client_controls'}", "fedsdd::rounds_with_R_2_against_algorithm_1[scaffold]",
         "a control of another global model"),
        ("itertools.islice(passes, distill_steps)", "itertools.islice(passes, distill_steps + 1)",
         "fedsdd::distil_makes_exactly_the_steps_asked_for", "one step too many"),
        ("    model.train()", "    model.eval()",
         "fedsdd::distil_moves_the_students_running_statistics", "the student learns in eval mode"),
        ('seeded(fed.seed, "distil", t, k)', 'seeded(fed.seed, "distil", k)',
         "common::no_two_trainings_share_dropout[fedsdd-t]", "the same dropout in every round"),
        ('seeded(fed.seed, "distil", t, k)', 'seeded(fed.seed, "distil", t)',
         "common::no_two_trainings_share_dropout[fedsdd-i]", "the same dropout in all models"),
    ],
    "algorithms/fedsdd_ablations.py": [
        ('if students != "none":', 'if students != "none" and t > warmup_rounds:',
         "fedsdd::the_ring_is_filled_in_warm_up_rounds_too", "warm-up rounds are forgotten"),
        ("[*ring, ensemble_logits(member_logits)]", "[ensemble_logits(member_logits), *ring]",
         "fedsdd::an_ensemble_of_clients_has_every_client", "the ring keeps the oldest rounds"),
        ("and t > warmup_rounds:", "and t >= warmup_rounds:",
         "fedsdd::warm_up_rounds_have_no_distillation", "warm-up ends a round early"),
    ],
    # -------------------------------------------------------------------------------- logits travel
    "algorithms/fedmd.py": [
        ("        return client_logits.mean(0)", "        return client_logits.softmax(-1).mean(0)",
         "fedmd::consensus_is_of_logits_not_of_probabilities", "a consensus of probabilities"),
        ("weights / weights.sum(), client_logits", "weights, client_logits",
         "fedmd::a_weighted_consensus_by_hand", "weights that do not sum to 1"),
        ("(logits - consensus_logits.detach()).abs().mean()",
         "(logits - consensus_logits.detach()).square().mean()",
         "fedmd::digest_loss_is_the_mean_absolute_error", "the squared error"),
        ("(logits - consensus_logits.detach())",
         "(logits.softmax(-1) - consensus_logits.detach().softmax(-1))",
         "fedmd::digest_loss_is_the_mean_absolute_error", "a softmax before the difference"),
        ("consensus_logits.detach()", "consensus_logits",
         "fedmd::digest_loss_is_the_mean_absolute_error", "the consensus gets a gradient"),
        ('stream(fed.seed, "subset", t)', 'stream(fed.seed, "subset")',
         "fedmd::each_rounds_subset_is_of_its_own_stream", "the same public subset in every round"),
        ("consensus_logits[places]", "consensus_logits[:len(places)]", "fedmd::fedmd_round_by_hand",
         "the consensus on other images"),
        ('"optimizer": party["revisit"]', '"optimizer": party["digest"]',
         "fedmd::fedmd_round_by_hand", "one optimiser for digest and revisit"),
        ("evaluate(fed, state, digested)", "evaluate(fed, state)",
         "fedmd::fedmd_round_by_hand[None]", "the digest is measured after the revisit"),
        ("else weights[i] for i in valid]", "else weights[i] for i in range(len(valid))]",
         "fedmd::weights_stay_with_parties_if_one_is_not_finite", "weights by place"),
    ],
    "algorithms/fedmd_transfer.py": [
        ("fed.validation if early_stopping else None", "fed.test if early_stopping else None",
         "fedmd::transfer_never_sees_a_test_set", "early stopping on the test set", "FedMD's code"),
        ('best, best_epoch = float("-inf"), 0', "best, best_epoch = 0.0, 0",
         "fedmd::training_ends_after_patience_without_gain", "an accuracy of 0 is never the best"),
        ("epoch - best_epoch >= patience", "epoch - best_epoch > patience",
         "fedmd::early_stopping_keeps_the_last_weights", "one epoch more than patience allows"),
        ("if reached > best + min_delta:", "if reached > best:",
         "fedmd::each_stage_counts_growth_beyond_its_own_min_delta", "any growth counts"),
        ("min_delta=min_delta, **PUBLIC_STAGE", "**PRIVATE_STAGE",
         "fedmd::each_stage_counts_growth_beyond_its_own_min_delta",
         "the first stage takes the second one's min_delta"),
        ("PRIVATE_STAGE = dict(min_delta=0.001,", "PRIVATE_STAGE = dict(min_delta=0.005,",
         "fedmd::each_stage_counts_growth_beyond_its_own_min_delta", "the first one's min_delta"),
        ("isinstance(module, nn.Linear)][-1]", "isinstance(module, nn.Linear)][0]",
         "fedmd::the_penalty_is_of_the_last_layers_kernel_alone", "the penalty is on the first"),
    ],
    "algorithms/fedmd_pooled.py": [
        ("t - 1 - best_round >=", "t - best_round >=",
         "fedmd::pooled_training_stops_for_each_network_on_its_own", "a round less than patience"),
        ("Data(*(torch.cat(parts) for parts in zip(*fed.private)))", "fed.private[0]",
         "fedmd::pooled_is_public_training_and_then_epochs", "one party's data for everyone's"),
        ("partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay)",
         "partial(OPTIMIZERS['adam'], lr=lr, weight_decay=weight_decay)",
         "contracts::optimizer_and_decay_reach_all_networks[fedmd-pooled]", "always Adam"),
    ],
    "algorithms/dsfl.py": [
        ("(client_probs.mean(0) / temperature).softmax(-1)",
         "(client_probs / temperature).softmax(-1).mean(0)",
         "dsfl::era_sharpens_the_mean_and_not_each_client", "each client sharpened, then the mean",
         "Flower's DS-FL"),
        ("(client_probs.mean(0) / temperature).softmax(-1)", "client_probs.mean(0).softmax(-1)",
         "dsfl::era_of_a_one_hot_mean_is_near_one_hot_by_hand", "no temperature", "AIJack's DS-FL"),
        ("predict_logits(fed, model, fed.public.images).softmax(-1)",
         "predict_logits(fed, model, fed.public.images)", "dsfl::dsfl_round_by_hand",
         "logits in the place of probabilities", "PFLlib's FD"),
        ("valid_probs, clients = finite(client_probs), trained",
         "valid_probs, clients = client_probs, trained",
         "logits::non_finite_logits_are_left_out[dsfl]", "an upload with nan is averaged"),
        ("if len(valid_probs):", "if len(valid_probs) > 1:",
         "logits::everyone_learns_from_a_single_valid_upload[dsfl]", "one upload teaches nobody"),
        ("MIXED = True", "MIXED = False", "command_line::networks_may_differ_unless_shared[dsfl]",
         "clients with different networks are refused"),
    ],
    "algorithms/cronus.py": [
        ("kept = kept.scatter(0, farthest, False)", "kept = kept.clone()",
         "cronus::a_liar_is_left_out_on_each_sample_it_lies_on", "the filter leaves nobody out"),
        ("(num_clients - dropped, num_clients - 2 * dropped)", "(num_clients - dropped,)",
         "cronus::two_passes_by_hand", "one pass of two"),
        ("if left < num_clients / 2 + 1:", "if left < num_clients / 2:",
         "cronus::no_pass_leaves_fewer_than_half_plus_one", "too few clients are left"),
        ("(deviation @ vectors[..., -1:])", "(deviation @ vectors[..., :1])",
         "cronus::robust_mean_by_slow_loop[8-3]", "the direction of the smallest variance"),
        ("scores = vectors[..., -1].square().T", "scores = vectors[..., -1].T",
         "cronus::robust_mean_by_slow_loop[8-30]", "liars on one side alone are far"),
        ("probs, 0.0).sum(0) / kept.sum(0)[:, None]", "probs, 0.0).sum(0) / len(probs)",
         "cronus::two_passes_by_hand", "who is left out still counts in the denominator"),
        ("if len(valid_probs):", "if len(valid_probs) > 1:",
         "logits::everyone_learns_from_a_single_valid_upload[cronus]", "one upload teaches nobody"),
        ("@timed", "", "runs::a_rounds_parts_are_timed_and_fit_into_it[cronus]",
         "the clients' second training is not timed"),
        ("partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)",
         "partial(OPTIMIZERS['amsgrad'], weight_decay=weight_decay)",
         "contracts::optimizer_and_decay_reach_all_networks[cronus]", "always Adam"),
    ],
    "algorithms/fedgem.py": [
        ("teacher_logits = valid_logits.mean(0)",
         "teacher_logits = valid_logits.softmax(-1).mean(0)", "fedgem::fedgem_round_by_hand",
         "the mean of probabilities for the mean of logits"),
        ("teacher_logits[rows], has_teacher[rows]", "teacher_logits[:len(rows)], has_teacher[rows]",
         "fedgem::fedgem_round_by_hand", "the teacher speaks of other images"),
        ("trained[i], server_logits, public_epochs", "trained[i], teacher_logits, public_epochs",
         "fedgem::fedgem_round_by_hand", "clients learn from their own mean"),
        ("up=num_public, down=num_public)", "up=num_public, down=0)",
         "fedgem::fedgem_round_by_hand", "the download is forgotten"),
    ],
    "algorithms/fedgems.py": [
        ("torch.special.entr(logits.softmax(-1)).sum(-1)",
         "torch.special.entr(logits.softmax(-1)).mean(-1)", "fedgems::eq3_by_hand",
         "the mean over the classes"),
        ("torch.special.entr(logits.softmax(-1)).sum(-1)",
         "-(logits.softmax(-1) * logits.softmax(-1).log()).sum(-1)",
         "fedgems::eq3_certain_logits_have_entropy_zero", "0 times log 0", "AIJack's FedGEMS"),
        ("(client_logits.argmax(-1) == labels) & torch", "torch",
         "fedgems::reliable_is_who_predicts_the_label_by_hand", "who is wrong is trusted"),
        (" & torch.isfinite(client_logits).all(-1)", "",
         "fedgems::a_logit_that_is_not_finite_is_never_right", "infinity can be right"),
        ('masked_fill(~reliable, float("-inf"))', "masked_fill(~reliable, 0.0)",
         "fedgems::eq4_unreliable_client_gets_exactly_zero",
         "masked with 0: the softmax gives it exp(0)", "AIJack's FedGEMS"),
        ("1 / entropy(client_logits).clamp(min=1e-6)", "1 / entropy(client_logits)",
         "fedgems::eq4_certain_clients_share_equally", "1 / 0", "AIJack's FedGEMS"),
        ("1 / entropy(client_logits).clamp(min=1e-6)", "1 / entropy(client_logits).clamp(min=1e-3)",
         "fedgems::eq4_entropies_below_a_millionth_count_the_same", "H is at least a thousandth"),
        ("1 / entropy(client_logits)", "entropy(client_logits)", "fedgems::eq4_by_hand",
         "H for 1/H: the least certain counts most"),
        ("torch.where(reliable, weights, 0.0)", "weights",
         "fedgems::eq4_weights_sum_to_1_or_are_0_where_nobody_is_right", "nan if nobody is right"),
        ("torch.where(weights > 0, weights * client_logits, 0.0).sum(0)",
         "(weights * client_logits).sum(0)",
         "fedgems::eq4_eq5_a_logit_that_is_not_finite_reaches_nothing", "0 times nan"),
        ("torch.where(weights > 0, weights * client_logits, 0.0).sum(0)",
         "(weights * client_logits.softmax(-1)).sum(0).log()", "fedgems::eq5_fused_logits_by_hand",
         "probabilities are mixed, not logits"),
        ("torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce)",
         "torch.where(has_teacher, (1 - epsilon) * ce + epsilon * kl, ce)", "fedgems::eq2_by_hand",
         "epsilon on the wrong term"),
        ("torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce).mean()",
         "(epsilon * ce + (1 - epsilon) * kl)[has_teacher].mean() + ce[~has_teacher].mean()",
         "fedgems::server_loss_is_one_mean_over_mixed_cases", "a sum of means", "AIJack's FedGEMS"),
        ("torch.where(has_teacher[:, None], teacher_logits, 0.0)", "teacher_logits",
         "fedgems::rows_without_a_teacher_may_hold_anything", "nan from the branch not taken"),
        ("kl_divergence(server_logits, logits)", "kl_divergence(logits, server_logits)",
         "fedgems::eq6_by_hand", "KL(client || server)", "AIJack's FedGEMS"),
        ("checked_logits = predict_logits(fed, model, images[rows])",
         "checked_logits = forward(fed, model.train(), images[rows]).detach()",
         "fedgems::selection_is_in_eval_mode", "judged in train mode", "AIJack's FedGEMS"),
        ("checked_logits = predict_logits(fed, model, images[rows])",
         "checked_logits = predict_logits(fed, model, fed.augment(images[rows], stream(0)) if "
         "fed.augment else images[rows])", "fedgems::selection_is_in_eval_mode",
         "the server judges itself on augmented images"),
        ("pool.logits[rows[correct]] = checked_logits[correct]",
         "pool.logits[rows] = checked_logits",
         "fedgems::the_pool_holds_the_logits_that_were_judged_right", "wrong logits are pooled"),
        ("pool.logits[rows[correct]] = checked_logits[correct]",
         "pool.logits[rows[correct & ~pool.mask[rows]]] = checked_logits[correct & "
         "~pool.mask[rows]]", "fedgems::the_pool_holds_the_logits_that_were_judged_right",
         "the pool keeps the oldest logits"),
        ("has_teacher = from_pool | from_clients", "has_teacher = from_pool | requests",
         "fedgems::nobody_right_is_plain_cross_entropy", "the uniform distribution teaches"),
        ("pool.logits[rows], fused_logits[rows])", "pool.logits[rows], fused_logits[:len(rows)])",
         "fedgems::a_round_is_the_papers_algorithm[one epoch]", "logits of other images"),
        ("requested[rows[requests]] = True", "requested[rows[from_clients]] = True",
         "fedgems::the_ledger_counts_exactly_the_rows_asked", "wrong uploads are not paid"),
        ("not is_finite(logits[requested])", "not is_finite(logits)",
         "fedgems::an_upload_is_bad_only_for_what_was_asked", "bad for logits that never travel"),
        ("rows = torch.nonzero(~pool.mask)[:, 0]", "rows = torch.arange(len(labels))",
         "fedgems::clients_predict_exactly_what_the_pool_lacks", "clients predict all rows"),
        ("int(requested.sum()), len(fusion.requested)",
         "int(requested.sum()), int(requested.sum())",
         "communication::fedgems_pays_up_as_asked_and_down_for_all", "what was asked comes down"),
        ('seeded(fed.seed, "server", t)', 'seeded(fed.seed, "server")',
         "common::no_two_trainings_share_dropout[fedgems-t]", "the same dropout in every round"),
    ],
    "algorithms/fedgems_ablations.py": [
        ("~alone & pool.mask[rows] & self_distillation",
         "~alone & (pool.mask[rows] | correct) & self_distillation",
         "fedgems::ablations_move_samples_between_cases[self_training]",
         "the pool is filled before it is looked at"),
        ('seeded(fed.seed, "server", t)', 'seeded(fed.seed, "server")',
         "common::no_two_trainings_share_dropout[fedgems-ablations-t]", "all rounds share dropout"),
        ("partial(OPTIMIZERS[optimizer], weight_decay=weight_decay)",
         "partial(OPTIMIZERS['amsgrad'], weight_decay=weight_decay)",
         "contracts::optimizer_and_decay_reach_all_networks[fedgems-ablations]", "always Adam"),
    ],
    # -------------------------------------------------------------------------- feature maps travel
    "algorithms/fedgkt.py": [
        ("distillation_loss(client_logits, logits, temperature) if distill",
         "distillation_loss(logits, client_logits, temperature) if distill", "fedgkt::eq6_by_hand",
         "the client learns in the server's loss"),
        ("temperature) if distill else ce", "temperature)", "fedgkt::eq6_by_hand",
         "the server always distils"),
        ("return ce + distillation_loss(server_logits, logits, temperature)",
         "return ce + distillation_loss(logits, server_logits, temperature)", "fedgkt::eq7_by_hand",
         "the server learns in the client's loss"),
        ("view(fed, i, trainings - 1)", "view(fed, i, trainings)",
         "fedgkt::participation_below_1_against_algorithm_1[shifted]",
         "the server's logits are of another view", "FedML's FedGKT"),
        ("view(fed, i, trainings), dtype", "fed.private[i].images, dtype",
         "fedgkt::extraction_is_in_eval_mode_of_the_next_view[shifted]",
         "feature maps of clean images"),
        ('if server_order == "mixed":', 'if server_order == "clients":',
         "fedgkt::in_order_the_server_forgets_the_clients_before", "the other order"),
        ("server_logits[rows] if has_teacher", "server_logits[:len(rows)] if has_teacher",
         "fedgkt::server_logits_follow_a_clients_rows", "logits of other images", "FedML's FedGKT"),
        ("labels[rows], client_logits[rows], temperature,",
         "labels[rows], client_logits[:len(rows)], temperature,",
         "fedgkt::two_rounds_against_algorithm_1", "the clients' logits of other images"),
        ("predict_logits(fed, model, features.float(), CHUNK)",
         "predict_logits(fed, model, features.float(), CHUNK).flip(0)",
         "fedgkt::server_logits_are_of_the_trained_server", "the answers are in another order"),
        ("predict_logits(fed, model, features.float(), CHUNK)",
         "forward(fed, model.train(), features.float()).detach()",
         "fedgkt::server_logits_are_of_the_trained_server", "not in eval mode", "FedML's FedGKT"),
        ("for _ in range(server_epochs):", "for _ in range(1):",
         "fedgkt::two_rounds_against_algorithm_1", "one epoch on the server"),
        ('seeded(fed.seed, "server", event)', 'seeded(fed.seed, "server")',
         "common::no_two_trainings_share_dropout[fedgkt-t]", "the same dropout on the server"),
    ],
    "algorithms/fedgkt_async.py": [
        ("if arrival == clock]", "if arrival == clock][:1]",
         "fedgkt::asynchronous_rounds_against_algorithm_1", "one of those who arrive is heard"),
        ("trainings * max(latencies)", "trainings * sum(latencies) / len(latencies)",
         "fedgkt::asynchronous_rounds_against_algorithm_1", "who waits for all waits for the mean"),
        ('round((client["trainings"] + 1) * latency, 9)', '(client["trainings"] + 1) * latency',
         "fedgkt::asynchronous_rounds_against_algorithm_1", "equal arrival times differ"),
    ],
    "algorithms/fedgkt_features.py": [
        ("    model.eval()", "    model.eval(), torch.set_grad_enabled(True)",
         "fedgkt::b3_b15_extraction_is_by_row_and_holds_no_graph",
         "feature maps drag their graph along", "FedML's FedGKT"),
        ("    model.eval()", "    model.train()",
         "fedgkt::b3_b15_extraction_is_by_row_and_holds_no_graph", "feature maps in train mode"),
        ("accuracy(torch.cat(server_logits), data.labels)",
         "sum(map(accuracy, server_logits, data.labels.split(CHUNK))) / len(server_logits)",
         "fedgkt::b4_accuracy_counts_samples_not_batches", "a mean over batches", "FedML's FedGKT"),
    ],
    "algorithms/split_learning.py": [
        ("features.backward(sent.grad)", "features.backward(sent)",
         "split_learning::a_batch_by_slow_loop", "the map itself comes back, not its gradient"),
        ("edge_optimizer.step()", "pass",
         "split_learning::split_learning_is_training_the_stacked_network", "the edge never learns"),
        ("edge_optimizer.zero_grad()", "pass",
         "split_learning::split_learning_is_training_the_stacked_network", "gradients pile up"),
        ('"bytes_down": sent_bytes', '"bytes_down": 0',
         "split_learning::eq12_is_what_the_metrics_of_a_round_add_up_to", "no download"),
        ("state = copy.deepcopy(", "state = (",
         "split_learning::a_later_round_does_not_change_a_state", "the next round changes it"),
        ('seeded(fed.seed, "local", t, i)', 'seeded(fed.seed, "local", i)',
         "common::no_two_trainings_share_dropout[split-learning-t]", "one dropout for all rounds"),
        ('seeded(fed.seed, "local", t, i)', 'seeded(fed.seed, "local", t)',
         "common::no_two_trainings_share_dropout[split-learning-i]", "one dropout for all clients"),
        ("rounds: int = 200", "rounds: int = 100",
         "command_line::defaults_are_the_papers[split-learning]", "half of the paper's rounds"),
        ("local_epochs: int = 1,", "local_epochs: int = 5,",
         "command_line::defaults_are_the_papers[split-learning]", "five passes a round by default"),
        ("weight_decay: float = 1e-4", "weight_decay: float = 0.0",
         "command_line::defaults_are_the_papers[split-learning]", "no weight decay by default"),
    ],
    "algorithms/baselines.py": [
        ("(union(*fed.private), local_epochs)", "(fed.private[0], local_epochs)",
         "baselines::centralized_is_one_long_training", "one client's data for everyone's"),
        ("union(fed.public, *fed.private)", "union(*fed.private)",
         "baselines::centralized_is_one_long_training[centralized_all]", "no public data"),
        ("[(private, local_epochs), (fed.public, public_epochs)]",
         "[(fed.public, public_epochs), (private, local_epochs)]",
         "baselines::public_private_makes_private_steps_then_public_ones", "public steps first"),
        ("restore(saved, model", "restore(saved | {'optimizer': None}, model",
         "baselines::centralized_is_one_long_training", "a new optimiser in every round"),
        ("fed.client_model(i, init=i)", "fed.client_model(i)",
         "baselines::standalone_trains_each_on_its_own_data", "all clients start alike"),
        ("MIXED = True", "MIXED = False",
         "command_line::networks_may_differ_unless_shared[centralized]", "mixed networks refused"),
    ],
    # -------------------------------------------------------------------------------------- attacks
    "attacks.py": [
        ("return benign.mean(0) + theta", "return benign.sum(0) / (len(benign) + 1) + theta",
         "attacks::eq7_paf_by_hand", "divided by all clients"),
        ("benign.std(0, correction=0)", "benign.std(0)", "attacks::eq10_lie_by_hand",
         "the sample's standard deviation, nan for one client"),
        ("(benign.sum(0) + far) / (len(benign) + 1)", "(benign.sum(0) + far) / len(benign)",
         "attacks::eq11_ofom_by_hand", "n + 1 uploads divided by n"),
        ("math.floor(num_clients / 2 + 1) - num_attackers",
         "math.floor((num_clients - num_attackers) / 2 + 1)", "attacks::eq9_lie_z",
         "a majority of the benign alone"),
        ("(benign - supporters) / benign, 0.001), 0.999)",
         "(benign - supporters) / num_clients, 0.001), 0.999)", "attacks::eq9_lie_z",
         "all clients in the denominator"),
        ('torch.from_numpy(stream("theta", source).standard_normal(shape))', "torch.ones(shape)",
         "attacks::us_are_standard_normal", "a constant, which no softmax notices"),
        ("benign = uploads[[j for j in range(len(uploads)) if j not in present]]",
         "benign = uploads", "attacks::only_the_attackers_uploads_change", "they copy themselves"),
        ("uploads = uploads.clone()", "uploads = uploads[:]",
         "attacks::only_the_attackers_uploads_change", "the clients' own tensors are overwritten",
         "FedML's byzantine attack"),
        ("if not present or not benign.numel():", "if t == 1 or not present or not benign.numel():",
         "attacks::attackers_are_drawn_once_from_the_seed", "the attack sleeps",
         "FedML's lazy worker"),
        ("piece.clamp(min=0) if", "piece if",
         "attacks::lie_on_models_never_gives_a_negative_variance", "a running variance below 0"),
    ],
    # ------------------------------------------------------------------------------------ partition
    "partition.py": [
        ("names = names[sizes >= min_size]", "names = names[sizes > min_size]",
         "partition::what_cannot_be_split_is_an_error_of_one_line", "19 images at least"),
        ("np.array_split(rng.permutation(len(labels)), num_clients)",
         "np.array_split(np.arange(len(labels)), num_clients)",
         "partition::iid_class_shares_are_alike", "not shuffled: a client gets one class"),
        ("np.array_split(rng.permutation(len(labels)), num_clients)",
         "np.array_split(np.random.default_rng(10).permutation(len(labels)), num_clients)",
         "partition::the_generator_alone_decides[iid]", "always seed 10", "FedML's partition_data"),
        (" shares = _dirichlet_shares(alpha, len(classes), num_clients, rng)",
         " shares = _dirichlet_shares(alpha, 1, num_clients, rng).repeat(len(classes), 0)",
         "partition::dirichlet_shares_have_mean_and_variance_of_dir", "one draw for all classes"),
        ("np.full(num_clients, min(alpha, 1e9))",
         "np.full(num_clients, min(alpha, 1e9) / num_clients)",
         "partition::dirichlet_shares_have_mean_and_variance_of_dir", "alpha over the clients"),
        ("shares = shares * below_mean", "shares = shares * 1",
         "partition::balanced_gives_full_clients_nothing_more", "no balance"),
        ("shares[:-1].cumsum() / shares.sum() * count", "shares[:-1].cumsum() * count",
         "partition::balanced_gives_full_clients_nothing_more", "the last client gets the rest"),
        ("min_size = len(rows) // (2 * size)", "min_size = 0",
         "partition::equal_gives_half_the_mean_size_before_the_cut", "nothing before the cut"),
        ("np.array_split(np.concatenate(assigned), num_clients)", "assigned",
         "partition::equal_sizes_differ_by_at_most_one[9]", "not cut into equal chunks"),
        ("names, writers = np.unique(writers, return_inverse=True)",
         "names, writers = np.arange(len(writers)), np.arange(len(writers))",
         "partition::no_writer_is_split_between_clients", "samples are assigned, not writers"),
        ("rng.permutation(rows)[:needed].reshape", "rng.choice(rows, needed).reshape",
         "partition::parts_are_disjoint_sorted_int64_rows[few_per_class]", "with replacement"),
        ("np.array_split(rows, len(sharers))", "[rows] * len(sharers)",
         "partition::parts_are_disjoint_sorted_int64_rows[by_subclass]",
         "clients with one subclass share images", "FedMD's code"),
        ("rng.permutation(np.unique(subclass[superclass == s]))",
         "list(dict.fromkeys(subclass[superclass == s].tolist()))",
         "partition::by_subclass_ignores_the_order_of_appearance", "a fixed order", "FedMD's code"),
        ("[87, 2, 131, 1325, 0, 1117, 704, 0, 0, 0]", "[87, 2, 131, 1325, 1117, 704, 0, 0, 0, 0]",
         "partition::fedgkt_table_6_adds_up_only_with_row_7_put_right", "the table as printed"),
        ("* len(rows) / FEDGKT_TABLE_6[:, c].sum()", "* len(labels) / FEDGKT_TABLE_6.sum()",
         "partition::fedgkt_table6_scales_with_class_sizes", "all classes are equally large"),
        ("        rows = rng.permutation(np.flatnonzero(labels == c))",
         "        rows = np.flatnonzero(labels == c)",
         "partition::fedgkt_table6_draws_its_counts_from_all_of_a_class", "nothing is shuffled"),
    ],
    # -------------------------------------------------------------------- communication, secure sum
    "communication.py": [
        ("model.parameters()) * copies * num_clients", "model.parameters()) * num_clients",
         "communication::bytes_are_proportional_to_clients_and_copies", "controls travel free"),
        ("return number_bytes * sum(p.numel() for p in model.parameters())",
         "return number_bytes * sum(p.numel() for p in model.state_dict().values())",
         "communication::fedavg_of_resnet11_costs_what_fedgems_counts", "buffers are counted too"),
        ("sum(weights_bytes(model, n, copies) for model, n in messages)",
         "sum(weights_bytes(model, 1, copies) for model, n in messages)",
         "communication::bytes_are_proportional_to_clients_and_copies", "one download for all"),
        ("return FLOAT_BYTES * num_samples * num_classes * num_clients",
         "return FLOAT_BYTES * num_samples * num_classes", "communication::logits_bytes_by_hand",
         "one client's bytes for all"),
        ('"bytes_down": logits_bytes(down, num_classes, num_clients)', '"bytes_down": 0',
         "communication::fedgems_table_4_is_whole_rounds_up_and_down[fedgem]", "no download"),
        ("(number_bytes * feature_numbers + FLOAT_BYTES * num_classes)",
         "(number_bytes * feature_numbers)", "communication::eq13_features_bytes_by_hand",
         "the soft labels are forgotten"),
        ("num_samples * 2 * FLOAT_BYTES * feature_numbers",
         "num_samples * FLOAT_BYTES * feature_numbers",
         "communication::eq12_split_learning_bytes_by_hand", "the gradients' way is forgotten"),
        ("FLOAT_BYTES * num_answered * num_classes", "FLOAT_BYTES * num_samples * num_classes",
         "communication::features_ledger_by_hand", "who was left out is answered all the same"),
        ('row.get("bytes_up", 0) + row.get("bytes_down", 0)', 'row.get("bytes_up", 0)',
         "communication::bytes_until_by_hand", "uploads alone"),
        ("max(training, distill_seconds + group_seconds[0])", "max(training, distill_seconds)",
         "fedsdd::a_round_takes_the_longer_of_two_chains", "the main model needs no training"),
        ("module.weight[0].numel()", "module.weight.numel()",
         "communication::network_cost_by_hand_on_a_tiny_convolution",
         "each output is charged for all kernels"),
    ],
    "plateau.py": [
        ("test=fed.validation, public_test=None", "public_test=None",
         "plateau::the_test_set_does_not_move_a_rate", "the rate falls by the test set",
         "FedML's FedGKT"),
        ("patience=patience, threshold=0", "patience=patience - 1, threshold=0",
         "plateau::a_rate_falls_after_more_than_patience_rounds_by_hand",
         "the rate falls a round early"),
        ("plateau.load_state_dict(state[\"plateau\"])", "pass",
         "plateau::a_resumed_run_goes_on_with_the_fallen_rate", "a resumed run forgets the best"),
    ],
    "secure_sum.py": [
        ("w.double().cpu() * weight", "w.cpu() * weight",
         "secure_sum::a_weighted_model_is_not_rounded_to_float32", "n_i w_i is rounded to float32"),
        ('sums["model." + name].double()', 'sums["model." + name]',
         "secure_sum::an_average_is_not_rounded_to_float32", "the sum is rounded to float32"),
    ],
}
MUTANTS = [Mutant(file, old, new, "test_{}.py::test_{}".format(*test.split("::")), *more)
           for file, table in TABLE.items() for old, new, test, *more in table]


@functools.cache
def functions_of(file):
    """[(name, first line after the docstring, last line)] of the functions of a file."""
    return [(f.name, f.body[ast.get_docstring(f) is not None].lineno, f.end_lineno)
            for f in ast.parse((ROOT / file).read_text()).body if isinstance(f, ast.FunctionDef)]


def place_of(mutant):
    """(the number of its line, the name of the function whose body this is a line of, or "")."""
    before, _, _ = (ROOT / mutant.file).read_text().partition(mutant.old)
    line = before.count("\n") + 1
    inside = [name for name, first, last in functions_of(mutant.file) if first <= line <= last]
    return line, "".join(inside)


def mutated(text, mutant):
    """The text of the file with the mistake in it."""
    if text.count(mutant.old) != 1 or "\n" in mutant.old + mutant.new:
        raise SystemExit(f"{mutant.file} must hold this once, in one line: {mutant.old}")
    return text.replace(mutant.old, mutant.new)


class Failures:
    """A plugin of pytest that keeps what was raised: [(test, phase, exception)]."""

    def __init__(self):
        self.seen = []

    def pytest_runtest_makereport(self, item, call):
        if call.excinfo:
            self.seen.append((item.nodeid, call.when, call.excinfo.value))


def verdict(copy, tests):
    """What pytest makes of the tests in a copy: "SURVIVED", "caught", or "broken: why"."""
    os.chdir(copy)
    own = (ROOT, ROOT / "tests")
    sys.path[:] = [copy] + [path for path in sys.path if Path(path).resolve() not in own]
    sys.dont_write_bytecode = True   # a stale one would hide the next mistake
    gc.freeze()                      # pytest collects garbage when it ends, and torch is large
    failures = Failures()
    options = ["-x", "--assert=plain", "--tb=short", "-p", "no:cacheprovider"]
    status = pytest.main([*options, *tests], plugins=[failures])
    if status == 0 and not failures.seen:
        return "SURVIVED"
    for test, phase, error in failures.seen[:1]:
        asserted = isinstance(error, (AssertionError, pytest.fail.Exception))
        if phase == "call" and asserted:
            return "caught"
        return f"broken: {type(error).__name__} in the {phase} of {test}"
    return f"broken: pytest ran no test, status {int(status)}"


def fork(copy, tests):
    """(a child that runs the tests in a copy, where its verdict can be read); it prints to the file
    copy + ".out"."""
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
    """Yields (mutant, verdict) as they come: each in a child of its own, one for each copy."""
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
    return [name for name in names
            if name not in ("algorithms", "tests") and not name.endswith((".py", ".toml", ".md"))]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th only")
    parser.add_argument("--only", default="", metavar="TEXT", help="part of file, function, words")
    parser.add_argument("--list", action="store_true", help="show them, break nothing")
    args = parser.parse_args(argv)
    chosen = [m for m in MUTANTS if args.only.lower()
              in f"{m.file} {place_of(m)[1]} {m.what} {m.whose}".lower()][::max(1, args.every)]
    if not chosen:                   # without a name pytest would run every test there is
        parser.error(f"no mistake has {args.only!r} in its file, function or words")
    titles = {m: f"{m.file}:{place_of(m)[0]}  {m.what}{m.whose and f' (as {m.whose})'}"
              for m in chosen}
    if args.list:
        for m in chosen:
            print(f"{titles[m]}\n    {m.old}\n    {m.new}\n    tests/{m.test}")
        return 0

    start, count = time.perf_counter(), Counter()
    os.environ.update(OMP_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="")
    import numpy, torch._dynamo  # noqa: E401, F401    once for all; a first optimizer needs both
    with tempfile.TemporaryDirectory() as folder:
        copies = [shutil.copytree(ROOT, f"{folder}/{k}", ignore=others) for k in range(WORKERS)]
        child, read = fork(copies[0], sorted({f"tests/{m.test}" for m in chosen}))
        os.waitpid(child, 0)
        if os.read(read, 1000) != b"SURVIVED":
            print(Path(copies[0] + ".out").read_text()
                  + "nothing is broken yet, and not all of the named tests pass")
            return 1
        for m, result in verdicts(chosen, copies):
            count[result.split(":")[0]] += 1
            print(f"{titles[m]}  {m.test}  {result}")
    print(f"tried {len(chosen)}, caught {count['caught']}, survived {count['SURVIVED']}, "
          f"broken {count['broken']}, in {time.perf_counter() - start:.0f} s")
    return int(count["caught"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
