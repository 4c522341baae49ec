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

Each mistake is in a part of one line that occurs once in its file: "x.«sum→mean»(-1)" puts
x.mean(-1) in the place of x.sum(-1). It is caught if the modules can still be imported and an
assertion of the named test fails; SURVIVED if the test passes; broken if anything else happens,
such as a NameError. The exit status is 0 if all are caught.
"""
import argparse
import ast
import functools
import gc
import os
import re
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


TABLE = {}   # [file, its tests]: [(mistake, test, what, whose), ...]. Under "fedavg" "round" is
# test_fedavg.py::test_round, and "common::kl" is test_common.py::test_kl wherever it stands.
# ----------------------------------------------------------------------------------- what all share
TABLE["algorithms/equations.py", "common"] = [
    ("«teacher_log_probs→student_log_probs».exp() * («teacher_log_probs→student_log_probs» - "
     "«student_log_probs→teacher_log_probs»)", "kl_is_from_teacher_to_student_by_hand",
     "KL(student || teacher)", "AIJack's FedGEMS"),
    ("teacher_logits«.detach()→».to(wide)", "gradient_of_kl_is_q_minus_p_none_for_teacher",
     "the teacher learns too", "AIJack's FedGEMS"),
    ("detach().to(wide)« / temperature→»", "distillation_is_t_squared_times_mean_kl",
     "the teacher is not softened", "FedDF's avg_probs"),
    ("«→(»F.«log_softmax→softmax»(teacher_logits.detach().to(wide) / temperature, dim=-1)«→ "
     "+ 1e-7).log()»", "kl_is_exact_for_equal_and_huge_logits", "1e-7 on the teacher",
     "FedML's FedGKT"),
    ("F.«log_softmax→softmax»(student_logits.to(wide) / temperature, dim=-1)«→.log()»",
     "kl_is_exact_for_equal_and_huge_logits", "softmax underflows", "FedBE's code"),
    ("terms.«sum→mean»(-1)", "kl_is_from_teacher_to_student_by_hand",
     "the mean over classes: C times too small", "FedBE's code, PFLlib's FedKD"),
    ("«terms = terms.masked_fill→»(", "kl_is_from_teacher_to_student_by_hand", "0 ln 0 is nan"),
    ("return «temperature**2 * →»kl", "distillation_is_t_squared_times_mean_kl", "no temperature²",
     "FedDF's code"),
    ("return temperature«**2→ * 2.0» * kl", "distillation_is_t_squared_times_mean_kl",
     "twice the temperature", "flearn"),
    ("kl_divergence(teacher_logits, student_logits, temperature).«mean→sum»()",
     "distillation_is_t_squared_times_mean_kl", "the sum over the batch", "flearn"),
    ("shares = «[w / sum(weights) for w in weights]→weights»", "eq2_average_by_hand",
     "weights that do not sum to 1", "FedBE's code"),
    ("shares = [«w / sum→1 / len»(weights) for w in weights]", "eq2_average_by_hand",
     "all models weigh the same", "FedDF's code"),
    ("= «→values[-1] if 'running' in name else »total.to(first.dtype)",
     "average_weights_averages_running_statistics", "the last client's running statistics",
     "FedDF's code"),
    ("share * value«.to(wide)→»", "functions::in_every_type_the_result_has_this_type_and_is_near_"
     "float64s[equations.average_weights-float16]", "float16 adds up errors"),
    ("if «first.is_floating_point()→True»:", "average_weights_keeps_counters_whole",
     "counters become fractions"),
    ("«torch.stack(values).amax(0)→values[0]»", "the_average_of_one_model_is_a_copy_of_it",
     "a client's own tensor comes back"),
    ("-(target_probs.detach()«→.log_softmax(-1)»",
     "logits::soft_cross_entropy_by_hand", "the target is a log-softmax", "AIJack's DS-FL"),
    ("-(target_probs.detach()«→.softmax(-1)»", "logits::soft_cross_entropy_by_hand",
     "a softmax over probabilities", "AIJack's DS-FL")]
TABLE["algorithms/common.py", "common"] = [
    ("np.random.default_rng(np.random.SeedSequence(«seed→10», ",
     "only_equal_keys_give_equal_numbers", "the seed is always 10", "FedML's partition_data"),
    ("np.random.default_rng(«np.random.SeedSequence(seed, spawn_key=_words(keys))→[seed, "
     "*_words(keys)]»)", "only_equal_keys_give_equal_numbers", "a list loses the zeros at its end"),
    ("with «torch.random.fork_rng(devices=gpus)→contextlib.nullcontext()»:",
     "seeded_leaves_the_global_generator_alone", "the global generator is reset",
     "FedML's _client_sampling"),
    ("max(1, «round→int»(participation * num_clients))",
     "participation_is_a_share_at_least_one_client", "the share is rounded down"),
    ("size=size«, replace=False→»", "participation_is_a_share_at_least_one_client",
     "a client is drawn twice"),
    ("bool((x.abs() < HUGE).«all→any»())", "logits::an_upload_with_one_bad_number_is_left_out[inf]",
     "one good number is enough"),
    ("if «is_finite(upload)→True»}", "fedavg::non_finite_upload_is_left_out",
     "an upload with nan is averaged")]
TABLE["algorithms/training.py", "common"] = [
    ('        «optimizer.param_groups[0]["lr"] = lr→pass»',
     "plateau::a_kept_optimizer_takes_the_rate_of_the_round",
     "the fallen rate does not reach the optimizer"),
    ("«→(b for b in »torch.from_numpy(rng.permutation(num_samples)).to(device).split(batch_size)«→ "
     "if len(b) == batch_size)»", "every_pass_has_each_sample_once_in_a_new_order",
     "the last, smaller batch is dropped", "FedML's FedGKT, PFLlib"),
    ("torch.«from_numpy(rng.permutation→arange»(num_samples)«)→»",
     "every_pass_has_each_sample_once_in_a_new_order", "nothing is shuffled"),
    ("    model.«eval→train»()", "prediction_is_pure_and_image_by_image",
     "teachers predict in train mode", "AIJack's FedGEMS and DS-FL, flearn"),
    ("model.train(«was_training→»)", "prediction_is_pure_and_image_by_image", "ends in train mode",
     "FedDF's code"),
    ("load_model(fed, «member→members[0]»)", "predict_members_is_one_prediction_per_state",
     "every member is the first one"),
    ("    model.«train→eval»()", "logits::a_student_sees_augmented_images_in_train_mode",
     "training in eval mode"),
    ("batch_loss = loss(forward(fed, model, batch), rows«→.sort().values»)",
     "logits::a_loss_is_given_the_rows_of_its_images", "targets of other images"),
    ('if «saved["optimizer"] is not None→False»:',
     "logits::saved_and_restored_is_as_if_never_saved[adam-Adam]", "the optimizer forgets"),
    ('«copy.deepcopy(→»saved["optimizer"]«)→»',
     "logits::saved_and_restored_is_as_if_never_saved[adam-Adam]", "a kept state changes"),
    ("«partial(→»torch.optim.Adam«, amsgrad=True)→»",
     "baselines::amsgrad_is_the_papers_adam[amsgrad-True]", "plain Adam as AMSGrad")]
TABLE["algorithms/evaluation.py", "common"] = [
    ("combinations(predicted«→[:2]», 2)", "disagreement_by_hand",
     "only the first two members are compared")]
# ----------------------------------------------------------------------------------- weights travel
TABLE["algorithms/fedavg.py", "fedavg"] = [
    ("sizes = [len(fed.private[i].labels) for i in «uploads→range(len(uploads))»]",
     "fedavg_round_by_hand", "sizes by place among the active", "FedBE's code"),
    ("sizes = [«len(fed.private[i].labels)→1» for i in", "two_rounds_against_a_slow_loop[run-0.0]",
     "clients count equally whatever their sizes", "FedDF's code"),
    ("«fed.augment(images[rows], rng) if fed.augment else →»images[rows]",
     "contracts::augmentation_is_for_what_is_trained_on_alone[fedavg]", "no augmentation"),
    ("model.parameters(), lr=lr«, weight_decay=weight_decay→»)",
     "contracts::optimizer_and_decay_reach_all_networks[fedavg]", "no weight decay"),
    ("weights_ledger([(model, len(«active→fed.private»))], COPIES)",
     "two_rounds_against_a_slow_loop[run-0.0]", "who takes no part pays too"),
    ("lr=lr,« optimizer=optimizer,→»", "contracts::optimizer_and_decay_reach_all_networks[fedavg]",
     "clients keep SGD")]
TABLE["algorithms/fedprox.py", "fedavg"] = [
    ("mu «/ 2 →»* squared_distance", "proximal_term_is_half_mu_squared_distance", "no half"),
    ("global_state[name].detach()).«square().sum→norm»()",
     "proximal_gradient_is_mu_times_difference", "the distance, not its square", "FedBE's FedProx"),
    ("(«→('weight' in name) * (»w.to(wide) - global_state[name].detach()«→)»)",
     "two_rounds_against_a_slow_loop[run-0.7]", "biases are free", "FedBE's FedProx"),
    ("model.«named_parameters→state_dict().items»()", "proximal_term_ignores_buffers",
     "running statistics are held too"),
    ("global_state[name]«.detach()→»", "proximal_gradient_is_mu_times_difference",
     "the global model gets a gradient"),
    (' + proximal_term(model, «server["model"]→model.state_dict()», mu)',
     "two_rounds_against_a_slow_loop[run-0.7]", "clients are held near themselves"),
    ("if «not uploads→len(uploads) < 2»:", "a_federation_of_one_is_local_training[fedprox]",
     "a lone client is not heard"),
    ("optimizer=optimizer«, weight_decay=weight_decay→»)",
     "contracts::optimizer_and_decay_reach_all_networks[fedprox]", "no weight decay")]
TABLE["algorithms/scaffold.py", "scaffold"] = [
    ("grad «- client_control +→+ client_control -» server_control",
     "correction_is_servers_minus_own_control", "the correction has the wrong sign"),
    ("(«global_params - local_params→local_params - global_params»)", "new_control_by_hand",
     "the new control is negated", "pfl-research's SCAFFOLD"),
    ("/ «(steps * lr)→lr»", "new_control_by_hand", "K is missing"),
    ("/ «(steps * lr)→steps»", "new_control_by_hand", "no learning rate"),
    ("client_control «- server_control →»+ (global",
     "new_control_is_the_mean_gradient_along_the_path", "no server's control"),
    ("steps «+= 1→= local_epochs»", "scaffold_round_against_slow_loop",
     "K counts epochs, not steps"),
    ("«w.grad = →»corrected_gradient(w.grad, ", "scaffold_round_against_slow_loop",
     "computed, not used", "FedLab's SCAFFOLD"),
    ('"client_control": «new_control→client_control»}', "scaffold_round_against_slow_loop",
     "clients' controls stay 0", "FedML's and flearn's SCAFFOLD"),
    ('change = «sum→list»(«upload→uploads.values())[-1]»["model"][name] - x« for upload in '
     'uploads.values()) / len(uploads)→»', "opposite_updates_cancel_and_one_is_one_nth",
     "only the last client's update counts", "FedML's SCAFFOLD"),
    ("= «c + →»len(uploads) / len(fed.private) * change", "scaffold_round_against_slow_loop",
     "the server's control is replaced"),
    ("«len(uploads) / len(fed.private) * →»change", "opposite_updates_cancel_and_one_is_one_nth",
     "divided by the active clients, not by all", "flearn's SCAFFOLD"),
    ("x + «global_lr * →»change", "scaffold_round_against_slow_loop",
     "the global learning rate is missing"),
    ('«server["client_controls"] | →»{i: ', "scaffold_round_against_slow_loop",
     "who does not take part forgets its control"),
    ("torch.optim.SGD(model.parameters(), lr=lr«→, momentum=0.9»)",
     "scaffold_round_against_slow_loop", "with momentum", "easyFL's SCAFFOLD"),
    ("COPIES = «2→1»", "messages_are_twice_the_parameters", "controls travel for nothing"),
    ("w«.detach()→», steps,", "controls_hold_parameters_only", "controls drag their graph along"),
    ("MIXED = «False→True»", "command_line::networks_may_differ_unless_shared[scaffold]",
     "mixed networks pass")]
# ----------------------------------------------------------------------- distillation on the server
TABLE["algorithms/feddf.py", "feddf"] = [
    ("«→100 * »accuracies >= 1.2 / num_classes", "drop_worst_by_hand",
     "percent against a share: nobody is dropped", "FedDF's code"),
    ("stays« if stays.any() else torch.ones_like(stays)→»", "drop_worst_by_hand",
     "everyone is dropped", "FedDF's code"),
    ("client_members(fed, «kept→uploads»), fed.public.images",
     "worse_than_a_guess_neither_counts_nor_teaches", "who is dropped still teaches"),
    ("teacher_logits = client_logits.«mean(0)→softmax(-1).mean(0).log()»", "feddf_round_by_hand",
     "the mean of probabilities for the mean of logits"),
    ("server_batch_size=«server_batch_size→batch_size»,", "feddf_round_by_hand",
     "the server takes the clients' batch size", "FedDF's code"),
    ("validation_accuracy = accuracy(«logits, fed.validation→predict_logits(fed, model, "
     "fed.test.images), fed.test».labels)", "patience_ends_and_returns_the_best",
     "early stopping on the test set", "FedDF's code"),
    (" validation_accuracy >«→=» best_accuracy:", "a_tie_is_nothing_new", "a tie counts as better"),
    ("step - best_step >«=→» patience", "patience_ends_and_returns_the_best",
     "one look more than patience allows"),
    ("best_state = «copy.deepcopy(→»model.state_dict()«)→»", "patience_ends_and_returns_the_best",
     "the best goes on learning"),
    ("model.«train→eval»()", "fewer_steps_than_a_look_still_return_a_student",
     "the student learns in eval mode"),
    ("best_state, best_step = «-1→0».0, None", "a_student_wrong_at_every_look_is_that_of_the_first",
     "a student that is always wrong is never returned"),
    ("accuracy(client_logits.«→softmax(-1).»mean(0), fed.test.labels)",
     "the_ensemble_predicts_by_mean_logits[feddf]", "the ensemble is of probabilities"),
    ("            if «→not »cosine:", "the_papers_student_against_a_slow_adam",
     "the rate does not fall"),
    ("lr=lr,« optimizer=optimizer,→»", "contracts::optimizer_and_decay_reach_all_networks[feddf]",
     "clients keep SGD")]
TABLE["algorithms/fedbe.py", "fedbe"] = [
    ("(«p * (w[name] - wide).square() for p, w in zip(weights, state_dicts)→sum(weights) / "
     "len(weights) * (w[name] - wide).square() for w in state_dicts»)", "gaussian_sample_by_hand",
     "the variance is not weighted", "FedBE's code"),
    ("wide + variance«.sqrt()→» * torch", "gaussian_sample_by_hand",
     "the variance for the standard deviation"),
    ("if «not name.endswith(BUFFERS)→mean.is_floating_point()»:",
     "samples_have_the_averages_buffers[gaussian_sample]",
     "running variances are drawn, maybe below 0", "FedBE's code"),
    ("«[g * p for g, p in zip(gamma, weights)]→gamma»", "dirichlet_sample_by_hand",
     "clients' sizes do not count", "FedBE's code"),
    ("return «2 * →»log_mean", "teacher_is_the_sharpened_mean_of_probabilities",
     "the teacher is not sharpened"),
    ("member_logits.«log_softmax(-1).logsumexp→mean»(0)",
     "teacher_is_the_sharpened_mean_of_probabilities", "the mean of logits"),
    ("members = [«server, →»*(server | ", "the_average_learns_from_the_ensemble_and_goes_on",
     "the average does not vote"),
    ("accuracy(member_logits.«→softmax(-1).»mean(0), fed.test.labels)",
     "feddf::the_ensemble_predicts_by_mean_logits[fedbe]", "the ensemble is of probabilities"),
    ("sampled = draw_samples(fed, t, uploads, posterior, samples, «concentration→1.0»)",
     "the_average_learns_from_the_ensemble_and_goes_on", "run drops --concentration"),
    ("dirichlet_sample(client_states, sizes, rng«, concentration→»)",
     "the_average_learns_from_the_ensemble_and_goes_on", "draw drops --concentration"),
    ("concentration: float = «1→2».0", "command_line::defaults_are_the_papers[fedbe]",
     "another Dirichlet by default")]
TABLE["algorithms/fedsdd.py", "fedsdd"] = [
    ('stream(fed.seed, "mask", «t, →»*pair)', "secure_sum::uploads_are_masked_anew_in_every_round",
     "the masks come back every round"),
    ("«rng.permutation(active).tolist()→list(active)»", "groups_change_and_all_meet_the_main_model",
     "the same groups in every round"),
    ("sorted(shuffled[k::K]) for k in «range(K)→reversed(range(K))»",
     "group_clients_gives_the_first_groups_the_remainder", "the last ones are larger"),
    ("if not 1 <= K« <= len(active)→»:", "more_models_than_active_clients_is_an_error",
     "a global model without clients"),
    ("return member_logits.«mean(0)→softmax(-1).mean(0).log()»",
     "eq3_is_the_softmax_of_the_mean_logits", "the mean of the softmaxes"),
    ("[*ring, ensemble_logits(member_logits)][-R«→ - 1»:]",
     "rounds_with_R_2_against_algorithm_1", "one round too many in the ring"),
    ("«averaged→start_models(fed, method, K)», fed.public.images",
     "rounds_with_R_2_against_algorithm_1", "the ring holds the initial models"),
    ("teacher_logits = «ensemble_logits(→»torch.stack(ring)«→.sum(0»)«→ / R»",
     "rounds_with_R_2_against_algorithm_1", "divided by R before there are R rounds"),
    ("test_ring = [«*test_ring, →»ensemble_logits(member_logits)]«[-R:]→»",
     "rounds_with_R_2_against_algorithm_1", "the ensemble that predicts has one round"),
    ("if k «% K =→>»= 0 else w", "rounds_with_R_2_against_algorithm_1",
     "all K models are distilled"),
    ("init=«k→0»)", "initial_models_differ_and_main_is_fedavgs", "K equal initial models"),
    ("group_of[i]]«→ | {x: c for x, c in global_models[0].items() if x == 'client_controls'}»",
     "rounds_with_R_2_against_algorithm_1[scaffold]", "a control of another global model"),
    (" distill_steps«→ + 1»)", "eq4_is_temperature_squared_kl_from_the_teacher",
     "one step too many"),
    ("    model.«train→eval»()", "distil_moves_the_students_running_statistics",
     "the student learns in eval mode")]
TABLE["algorithms/fedsdd_ablations.py", "fedsdd"] = [
    ('if students != "none"«→ and t > warmup_rounds»:', "warm_up_rounds_have_no_distillation",
     "warm-up rounds are forgotten"),
    ("[«*ring, →»ensemble_logits(member_logits)«→, *ring»]",
     "an_ensemble_of_clients_has_every_client", "the ring keeps the oldest rounds"),
    ("and t >«→=» warmup_rounds:", "warm_up_rounds_have_no_distillation",
     "warm-up ends a round early")]
# ------------------------------------------------------------------------------------ logits travel
TABLE["algorithms/fedmd.py", "fedmd"] = [
    ("        return client_logits.«→softmax(-1).»mean(0)",
     "consensus_is_of_logits_not_of_probabilities", "a consensus of probabilities"),
    ("weights« / weights.sum()→», logits", "a_weighted_consensus_by_hand",
     "weights that do not sum to 1"),
    ("(logits - consensus_logits.detach()).«abs→square»().mean()",
     "digest_loss_is_the_mean_absolute_error", "the squared error"),
    ("(logits«→.softmax(-1)» - consensus_logits.detach()«→.softmax(-1»)«→)»",
     "digest_loss_is_the_mean_absolute_error", "a softmax before the difference"),
    ("consensus_logits«.detach()→»", "digest_loss_is_the_mean_absolute_error",
     "the consensus gets a gradient"),
    ('stream(fed.seed, "subset"«, t→»)', "each_rounds_subset_is_of_its_own_stream",
     "the same public subset in every round"),
    ("consensus_logits[«places→:len(places)»]", "fedmd_round_by_hand",
     "the consensus on other images"),
    ('"optimizer": party["«revisit→digest»"]', "fedmd_round_by_hand",
     "one optimizer for digest and revisit"),
    ("evaluate(fed, state«, digested→»)", "fedmd_round_by_hand[None]",
     "the digest is measured after the revisit"),
    ("else weights[i] for i in «valid→range(len(valid))»]",
     "weights_stay_with_parties_if_one_is_not_finite", "weights by place")]
TABLE["algorithms/fedmd_transfer.py", "fedmd"] = [
    ("fed.«validation→test» if early_stopping else None", "transfer_never_sees_a_test_set",
     "early stopping on the test set", "FedMD's code"),
    ('best, best_epoch = «float("-inf")→0.0», 0', "training_ends_after_patience_without_gain",
     "an accuracy of 0 is never the best"),
    ("epoch - best_epoch >«=→» patience", "training_ends_after_patience_without_gain",
     "one epoch more than patience allows"),
    ("if reached > best« + min_delta→»:", "training_ends_after_patience_without_gain",
     "any growth counts"),
    ("«min_delta=min_delta, **PUBLIC_STAGE→**PRIVATE_STAGE»",
     "each_stage_counts_growth_beyond_its_own_min_delta", "the second stage's min_delta"),
    ("PRIVATE_STAGE = dict(min_delta=0.«001→005»,",
     "each_stage_counts_growth_beyond_its_own_min_delta", "the first one's min_delta"),
    ("isinstance(module, nn.Linear)][«-1→0»]", "the_penalty_is_of_the_last_layers_kernel_alone",
     "the penalty is on the first")]
TABLE["algorithms/fedmd_pooled.py", "fedmd"] = [
    ("t - «1 - →»best_round >=", "pooled_training_stops_for_each_network_on_its_own",
     "a round less than patience"),
    ("«Data(*(torch.cat(parts) for parts in zip(*→»fed.private«)))→[0]»",
     "pooled_is_public_training_and_then_epochs", "one party's data for everyone's"),
    ("partial(OPTIMIZERS[«optimizer→'adam'»], lr=lr, weight_decay=weight_decay)",
     "contracts::optimizer_and_decay_reach_all_networks[fedmd-pooled]", "always Adam")]
TABLE["algorithms/dsfl.py", "dsfl"] = [
    ("(client_probs«.mean(0)→» / temperature).softmax(-1)«→.mean(0)»",
     "era_sharpens_the_mean_and_not_each_client", "each client is sharpened", "Flower's DS-FL"),
    ("«(→»client_probs.mean(0«) / temperature→»).softmax(-1)",
     "era_of_a_one_hot_mean_is_near_one_hot_by_hand", "no temperature", "AIJack's DS-FL"),
    ("predict_logits(fed, model, fed.public.images)«.softmax(-1)→»", "dsfl_round_by_hand",
     "logits in the place of probabilities", "PFLlib's FD"),
    ("valid_probs, clients = «finite(→»client_probs«)→», trained",
     "logits::non_finite_logits_are_left_out[dsfl]", "an upload with nan is averaged"),
    ("if len(valid_probs)«→ > 1»:", "logits::everyone_learns_from_a_single_valid_upload[dsfl]",
     "one upload teaches nobody"),
    ("MIXED = «True→False»", "command_line::networks_may_differ_unless_shared[dsfl]",
     "clients with different networks are refused")]
TABLE["algorithms/cronus.py", "cronus"] = [
    ("kept = kept.«scatter(0, farthest, False)→clone()»",
     "a_liar_is_left_out_on_each_sample_it_lies_on", "the filter leaves nobody out"),
    ("(num_clients - dropped,« num_clients - 2 * dropped→»)", "two_passes_by_hand",
     "one pass of two"),
    ("if left < num_clients / 2« + 1→»:", "no_pass_leaves_fewer_than_half_plus_one",
     "too few clients are left"),
    ("(deviation @ vectors[..., «-1:→:1»])", "robust_mean_by_slow_loop[8-3]",
     "the direction of the smallest variance"),
    ("scores = vectors[..., -1].«square().→»T", "robust_mean_by_slow_loop[8-30]",
     "liars on one side alone are far"),
    ("probs, 0.0).sum(0) / «kept.sum(0)[:, None]→len(probs)»", "two_passes_by_hand",
     "who is left out still counts in the denominator"),
    ("if len(valid_probs)«→ > 1»:", "logits::everyone_learns_from_a_single_valid_upload[cronus]",
     "one upload teaches nobody"),
    ("«@timed→»", "runs::a_rounds_parts_are_timed_and_fit_into_it[cronus]",
     "the clients' second training is not timed"),
    ("partial(OPTIMIZERS[«optimizer→'amsgrad'»], weight_decay=weight_decay)",
     "contracts::optimizer_and_decay_reach_all_networks[cronus]", "always Adam")]
TABLE["algorithms/fedgem.py", "fedgem"] = [
    ("teacher_logits = valid_logits.«→softmax(-1).»mean(0)", "fedgem_round_by_hand",
     "the mean of probabilities for the mean of logits"),
    ("teacher_logits[«rows→:len(rows)»], has_teacher[rows]", "fedgem_round_by_hand",
     "the teacher speaks of other images"),
    ("trained[i], «server_logits→teacher_logits», public_epochs", "fedgem_round_by_hand",
     "clients learn from their own mean"),
    ("up=num_public, down=«num_public→0»)", "fedgem_round_by_hand", "the download is forgotten")]
TABLE["algorithms/fedgems.py", "fedgems"] = [
    ("entr(probs).«sum→mean»(-1)", "eq3_by_hand", "the mean over the classes"),
    ("«torch.special.entr→-»(probs«→ * probs.log()»).sum(-1)",
     "eq3_certain_logits_have_entropy_zero", "0 times log 0", "AIJack's FedGEMS"),
    ("«(client_logits.argmax(-1) == labels) & →»torch",
     "reliable_is_who_predicts_the_label_by_hand", "who is wrong is trusted"),
    ("« & torch.isfinite(client_logits).all(-1)→»", "a_logit_that_is_not_finite_is_never_right",
     "infinity can be right"),
    ('masked_fill(~reliable, «float("-inf")→0.0»)', "eq4_unreliable_client_gets_exactly_zero",
     "masked with 0: the softmax gives it exp(0)", "AIJack's FedGEMS"),
    ("client_logits.to(wide))«.clamp(min=1e-6)→»", "eq4_certain_clients_share_equally", "1 / 0",
     "AIJack's FedGEMS"),
    ("client_logits.to(wide)).clamp(min=1e-«6→3»)",
     "eq4_entropies_below_a_millionth_count_the_same", "H is at least a thousandth"),
    ("«1 / →»entropy(client_logits", "eq4_by_hand", "H for 1/H: the least certain counts most"),
    ("entropy(client_logits«.to(wide)→»)", "functions::in_every_type_the_result_has_this_type_and_"
     "is_near_float64s[fedgems.entropy_weights-float16]", "1 / H overflows: nan"),
    ("«torch.where(reliable, weights, 0.0)→weights»",
     "eq4_eq5_against_a_slow_loop", "nan if nobody is right"),
    ("«torch.where→»(«weights != 0, →»weights * client_logits«, 0.0→»).sum(0)",
     "eq4_eq5_a_logit_that_is_not_finite_reaches_nothing", "0 times nan"),
    ("«torch.where(weights != 0, weights * client_logits, 0.0).sum(0)→(weights * "
     "client_logits.softmax(-1)).sum(0).log()»", "eq5_fused_logits_by_hand",
     "probabilities are mixed, not logits"),
    ("weights «!=→>» 0", "logits::a_weight_of_nan_shows_and_never_makes_a_uniform_teacher",
     "a weight of nan counts as 0"),
    ("torch.where(has_teacher,« epsilon * ce +→» (1 - epsilon) * «→ce + epsilon * »kl, ce)",
     "eq2_by_hand", "epsilon on the wrong term"),
    ("«torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce)→(epsilon * ce + (1 - "
     "epsilon) * kl)[has_teacher].mean() + ce[~has_teacher]».mean()",
     "server_loss_is_one_mean_over_mixed_cases", "a sum of means", "AIJack's FedGEMS"),
    ("«torch.where(has_teacher[:, None], →»teacher_logits«, 0.0)→»",
     "rows_without_a_teacher_may_hold_anything", "nan from the branch not taken"),
    ("kl_divergence(«server_logits, logits→logits, server_logits»)", "eq6_by_hand",
     "KL(client || server)", "AIJack's FedGEMS"),
    ("checked_logits = «predict_logits→forward»(fed, model«→.train()», images[rows])«→.detach()»",
     "selection_is_in_eval_mode", "judged in train mode", "AIJack's FedGEMS"),
    (" = predict_logits(fed, model, «→fed.augment(images[rows], stream(0)) if fed.augment else "
     "»images[rows])", "selection_is_in_eval_mode", "the server judges itself on augmented images"),
    ("pool.logits[rows«[correct]→»] = checked_logits«[correct]→»",
     "a_round_is_the_papers_algorithm[one epoch]", "wrong logits are pooled"),
    ("rows[correct«→ & ~pool.mask[rows]»]] = checked_logits[correct«→ & ~pool.mask[rows»]«→]»",
     "a_round_is_the_papers_algorithm[one epoch]", "the pool keeps the oldest logits"),
    ("has_teacher = from_pool | «from_clients→requests»", "nobody_right_is_plain_cross_entropy",
     "the uniform distribution teaches"),
    ("pool.logits[rows], fused_logits[«rows→:len(rows)»])",
     "a_round_is_the_papers_algorithm[one epoch]", "logits of other images"),
    ("requested[rows[«requests→from_clients»]] = True",
     "a_round_is_the_papers_algorithm[one epoch]", "wrong uploads are not paid"),
    ("not is_finite(logits«[requested]→»)", "an_upload_is_bad_only_for_what_was_asked",
     "bad for logits that never travel"),
    ("rows = torch.«nonzero(~pool.mask)[:, 0]→arange(len(labels))»",
     "clients_predict_exactly_what_the_pool_lacks", "clients predict all rows"),
    ("int(requested.sum()), «len(fusion.requested)→int(requested.sum())»",
     "a_round_is_the_papers_algorithm[one epoch]", "what was asked comes down")]
TABLE["algorithms/fedgems_ablations.py", "fedgems"] = [
    ("~alone & «→(»pool.mask[rows] «→| correct) »& self_distillation",
     "ablations_move_samples_between_cases[self_training]", "the pool is filled too early"),
    ("partial(OPTIMIZERS[«optimizer→'amsgrad'»], weight_decay=weight_decay)",
     "contracts::optimizer_and_decay_reach_all_networks[fedgems-ablations]", "always Adam")]
# ------------------------------------------------------------------------------ feature maps travel
TABLE["algorithms/fedgkt.py", "fedgkt"] = [
    ("distillation_loss(«client_logits, logits→logits, client_logits», temperature) if distill",
     "eq6_by_hand", "the client learns in the server's loss"),
    ("temperature)« if distill else ce→»", "eq6_by_hand", "the server always distils"),
    ("return ce + distillation_loss(«server_logits, logits→logits, server_logits», temperature)",
     "eq7_by_hand", "the server learns in the client's loss"),
    ("view(fed, i, trainings« - 1→»)", "participation_below_1_against_algorithm_1[shifted]",
     "the server's logits are of another view", "FedML's FedGKT"),
    ("«view(fed, i, trainings)→fed.private[i].images», dtype",
     "extraction_is_in_eval_mode_of_the_next_view[shifted]", "feature maps of clean images"),
    ('if server_order == "«mixed→clients»":', "two_rounds_against_algorithm_1",
     "the other order"),
    ("server_logits[«rows→:len(rows)»] if has_teacher", "two_rounds_against_algorithm_1",
     "logits of other images", "FedML's FedGKT"),
    ("labels[rows], client_logits[«rows→:len(rows)»], temperature,",
     "two_rounds_against_algorithm_1", "the clients' logits of other images"),
    ("predict_logits(fed, model, features.float(), CHUNK)«→.flip(0)»",
     "server_logits_are_of_the_trained_server", "the answers are in another order"),
    ("«predict_logits(fed, model, features.float(), CHUNK)→forward(fed, model.train(), "
     "features.float()).detach()»", "server_logits_are_of_the_trained_server", "not in eval mode",
     "FedML's FedGKT"),
    ("for _ in range(«server_epochs→1»):", "two_rounds_against_algorithm_1",
     "one epoch on the server")]
TABLE["algorithms/fedgkt_async.py", "fedgkt"] = [
    ("if arrival == clock]«→[:1]»", "asynchronous_rounds_against_algorithm_1",
     "one of those who arrive is heard"),
    ("trainings * «max→sum(latencies) / len»(latencies)", "asynchronous_rounds_against_algorithm_1",
     "who waits for all waits for the mean"),
    ('«round(→»(client["trainings"] + 1) * latency«, 9)→»',
     "asynchronous_rounds_against_algorithm_1", "equal arrival times differ")]
TABLE["algorithms/fedgkt_features.py", "fedgkt"] = [
    ("    model.eval()«→, torch.set_grad_enabled(True)»",
     "b3_b15_extraction_is_by_row_and_holds_no_graph", "maps hold a graph", "FedML's FedGKT"),
    ("    model.«eval→train»()", "b3_b15_extraction_is_by_row_and_holds_no_graph",
     "feature maps in train mode"),
    ("«accuracy(torch.cat(server_logits), data.labels)→sum(map(accuracy, server_logits, "
     "data.labels.split(CHUNK))) / len(server_logits)»", "b4_accuracy_counts_samples_not_batches",
     "a mean over batches", "FedML's FedGKT")]
TABLE["algorithms/split_learning.py", "split_learning"] = [
    ("features.backward(sent«.grad→»)", "a_batch_by_slow_loop",
     "the map itself comes back, not its gradient"),
    ("«edge_optimizer.step()→pass»", "split_learning_is_training_the_stacked_network",
     "the edge never learns"),
    ("«edge_optimizer.zero_grad()→pass»", "split_learning_is_training_the_stacked_network",
     "gradients pile up"),
    ('"bytes_down": «sent_bytes→0»', "eq12_is_what_the_metrics_of_a_round_add_up_to",
     "no download"),
    ("state = «copy.deepcopy→»(",
     "contracts::a_state_is_all_that_later_rounds_need[split-learning]", "the next changes it"),
    ("rounds: int = «200→100»", "command_line::defaults_are_the_papers[split-learning]",
     "half of the paper's rounds"),
    ("local_epochs: int = «1→5»,", "command_line::defaults_are_the_papers[split-learning]",
     "five passes a round by default"),
    ("weight_decay: float = «1e-4→0.0»", "command_line::defaults_are_the_papers[split-learning]",
     "no weight decay by default")]
TABLE["algorithms/baselines.py", "baselines"] = [
    ("(«union(*→»fed.private«)→[0]», local_epochs)", "centralized_is_one_long_training",
     "one client's data for everyone's"),
    ("union(«fed.public, →»*fed.private)", "centralized_is_one_long_training[centralized_all]",
     "no public data"),
    ("[«(private, local_epochs), →»(fed.public, public_epochs)«→, (private, local_epochs)»]",
     "public_private_makes_private_steps_then_public_ones", "public steps first"),
    ("restore(saved«→ | {'optimizer': None}», model", "centralized_is_one_long_training",
     "a new optimizer in every round"),
    ("fed.client_model(i«, init=i→»)", "standalone_trains_each_on_its_own_data",
     "all clients start alike"),
    ("MIXED = «True→False»", "command_line::networks_may_differ_unless_shared[centralized]",
     "mixed networks refused")]
TABLE["attacks.py", "attacks"] = [
    ("return benign.«mean(0)→sum(0) / (len(benign) + 1)» + theta", "eq7_paf_by_hand",
     "divided by all clients"),
    ("benign.std(0«, correction=0→»)", "eq10_lie_by_hand",
     "the sample's standard deviation, nan for one client"),
    ("+ far) / «(→»len(benign)« + 1)→»", "eq11_ofom_by_hand", "n + 1 uploads divided by n"),
    ("math.floor(«→(»num_clients«→ - num_attackers)» / 2 + 1)« - num_attackers→»", "eq9_lie_z",
     "a majority of the benign alone"),
    (" supporters) / «benign→num_clients», 0.001),", "eq9_lie_z", "all clients in the denominator"),
    ('torch.«from_numpy(stream("theta", source).standard_normal(shape))→ones(shape)»',
     "us_are_standard_normal", "a constant, which no softmax notices"),
    ("benign = uploads«[[j for j in range(len(uploads)) if j not in present]]→»",
     "only_the_attackers_uploads_change", "they copy themselves"),
    ("uploads = uploads«.clone()→[:]»", "only_the_attackers_uploads_change",
     "the clients' own tensors are overwritten", "FedML's byzantine attack"),
    ("if «→t == 1 or »not present or not benign.numel():", "attackers_are_drawn_once_from_the_seed",
     "the attack sleeps", "FedML's lazy worker"),
    ("piece«.clamp(min=0)→» if", "lie_on_models_never_gives_a_negative_variance",
     "a running variance below 0")]
TABLE["partition.py", "partition"] = [
    ("held_out[«rng.permutation→»(", "hold_out_takes_the_share_of_every_class_to_one_sample",
     "the first samples of each class"),
    ("hold_out(labels, 0.«5→4», rng)", "halves_differ_by_at_most_one_per_class_and_in_total",
     "two fifths"),
    ("names = names[sizes >«=→» min_size]", "what_cannot_be_split_is_an_error_of_one_line",
     "19 images at least"),
    ("np.array_split(«rng.permutation→np.arange»(len(labels)), num_clients)",
     "iid_class_shares_are_alike", "not shuffled: a client gets one class"),
    ("np.array_split(«rng→np.random.default_rng(10)».permutation(len(labels)), num_clients)",
     "parts_are_disjoint_sorted_int64_rows[iid]", "always seed 10", "FedML's partition_data"),
    (" shares = _dirichlet_shares(alpha, «len(classes)→1», num_clients, "
     "rng)«→.repeat(len(classes), 0)»", "dirichlet_shares_have_mean_and_variance_of_dir",
     "one draw for all classes"),
    ("np.full(num_clients, min(alpha, 1e9)«→ / num_clients»)",
     "dirichlet_shares_have_mean_and_variance_of_dir", "alpha over the clients"),
    ("shares = shares * «below_mean→1»", "balanced_gives_full_clients_nothing_more", "no balance"),
    ("shares[:-1].cumsum() «/ shares.sum() →»* count", "balanced_gives_full_clients_nothing_more",
     "the last client gets the rest"),
    ("min_size = «len(rows) // (2 * size)→0»", "equal_gives_half_the_mean_size_before_the_cut",
     "nothing before the cut"),
    ("«np.array_split(np.concatenate(assigned), num_clients)→assigned»",
     "equal_sizes_differ_by_at_most_one[9]", "not cut into equal chunks"),
    ("names, writers = np.«unique(writers, return_inverse=True)→arange(len(writers)), "
     "np.arange(len(writers))»", "no_writer_is_split_between_clients", "samples are dealt"),
    ("rng.«permutation(rows)[:needed]→choice(rows, needed)».reshape",
     "parts_are_disjoint_sorted_int64_rows[few_per_class]", "with replacement"),
    ("«np.array_split(→[»rows«,→] *» len(sharers)«)→»",
     "parts_are_disjoint_sorted_int64_rows[by_subclass]", "clients share images", "FedMD's code"),
    ("«rng.permutation(np.unique(subclass[superclass == "
     "s]))→list(dict.fromkeys(subclass[superclass == s].tolist()))»",
     "by_subclass_ignores_the_order_of_appearance", "a fixed order", "FedMD's code"),
    ("[87, 2, 131, 1325, «0, 1117, 704→1117, 704, 0», 0, 0, 0]",
     "fedgkt_table_6_adds_up_only_with_row_7_put_right", "the table as printed"),
    ("* len(«rows→labels») / FEDGKT_TABLE_6«[:, c]→».sum()",
     "fedgkt_table6_scales_with_class_sizes", "all classes are equally large"),
    ("        rows = «rng.permutation(→»np.flatnonzero(labels == c)«)→»",
     "fedgkt_table6_draws_its_counts_from_all_of_a_class", "nothing is shuffled")]
# ------------------------------------------------------------------------ communication, secure sum
TABLE["communication.py", "communication"] = [
    ("model.parameters()) * «copies * →»num_clients",
     "bytes_are_proportional_to_clients_and_copies", "controls travel free"),
    ("return number_bytes * sum(p.numel() for p in model.«parameters→state_dict().values»())",
     "fedavg_of_resnet11_costs_what_fedgems_counts", "buffers are counted too"),
    ("sum(weights_bytes(model, «n→1», copies) for model, n in messages)",
     "bytes_are_proportional_to_clients_and_copies", "one download for all"),
    (" * num_classes« * num_clients→»", "logits_bytes_by_hand", "one client's bytes for all"),
    ('"bytes_down": «logits_bytes(down, num_classes, num_clients)→0»',
     "fedgems_table_4_is_whole_rounds_up_and_down[fedgem]", "no download"),
    ("(number_bytes * feature_numbers« + FLOAT_BYTES * num_classes→»)",
     "eq13_features_bytes_by_hand", "the soft labels are forgotten"),
    ("num_samples * «2 * →»FLOAT_BYTES * feature_numbers", "eq12_split_learning_bytes_by_hand",
     "the gradients' way is forgotten"),
    ("FLOAT_BYTES * «num_answered→num_samples» * num_classes", "features_ledger_by_hand",
     "who was left out is answered all the same"),
    ('get("bytes_up", 0)« + row.get("bytes_down", 0)→»', "bytes_until_by_hand", "uploads alone"),
    ("max(training, distill_seconds« + group_seconds[0]→»)",
     "fedsdd::a_round_takes_the_longer_of_two_chains", "the main model needs no training"),
    ("module.weight«[0]→».numel()", "network_cost_by_hand_on_a_tiny_convolution",
     "each output is charged for all kernels")]
TABLE["plateau.py", "plateau"] = [
    ("«test=fed.validation, →»public_test=None", "the_test_set_does_not_move_a_rate",
     "the rate falls by the test set", "FedML's FedGKT"),
    ("patience=patience«→ - 1», threshold=0",
     "a_rate_falls_after_more_than_patience_rounds_by_hand", "the rate falls a round early"),
    ('«plateau.load_state_dict(state["plateau"])→pass»',
     "a_resumed_run_goes_on_with_the_fallen_rate", "a resumed run forgets the best")]
TABLE["secure_sum.py", "secure_sum"] = [
    ("w.«double().→»cpu() * weight", "a_weighted_model_is_not_rounded_to_float32",
     "n_i w_i is rounded to float32"),
    ('sums["model." + name]«.double()→»', "an_average_is_not_rounded_to_float32",
     "the sum is rounded to float32")]
# ------------------------------------- the same dropout in every round, or in every client or model
for keys, cases in {
        '"local", «t, →»i': ["scaffold-t", "split-learning-t"],
        '"local", t«, i→»': ["scaffold-i", "split-learning-i"],
        '"distil", «t, →»first_client': ["feddf-t"], '"distil", t«, first_client→»': ["feddf-i"],
        '"distil", «t, →»k': ["fedsdd-t"], '"distil", t«, k→»': ["fedsdd-i"],
        '"distil"«, t→»': ["fedbe-t"], '"server"«, event→»': ["fedgkt-t"],
        '"server"«, t→»': ["fedgems-t", "fedgems-ablations-t"]}.items():
    for case in cases:
        file, what = f"algorithms/{case[:-2].replace('-', '_')}.py", "round" * case.endswith("t")
        TABLE.setdefault((file, "common"), []).append((
            f"seeded(fed.seed, {keys})", f"no_two_trainings_share_dropout[{case}]",
            f"the same dropout in every {what or 'training of a round'}"))


def mutant(file, home, mistake, test, *words):
    """Of "lr=«lr→0.1»" the text before, lr=lr, and after, lr=0.1; the test's full name."""
    old, new = (re.sub("«(.*?)→(.*?)»", part, mistake) for part in (r"\1", r"\2"))
    module, _, name = test.rpartition("::")
    return Mutant(file, old, new, f"test_{module or home}.py::test_{name}", *words)


MUTANTS = [mutant(file, home, *row) for (file, home), rows in TABLE.items() for row in rows]


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
            if name not in ("algorithms", "reference", "tests")
            and not name.endswith((".py", ".toml", ".md"))]


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
