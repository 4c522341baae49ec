"""Mistakes of one line, each with the test that notices it: the table of break_it.py.

TABLE[file, its tests]: [(mistake, test, what, whose), ...]. Under "fedavg" "round" is
test_fedavg.py::test_round, and "shared::kl" is test_shared.py::test_kl wherever it stands. A
mistake is in a part of one line that occurs once in its file: "x.«sum→mean»(-1)" puts x.mean(-1)
in the place of x.sum(-1).
"""
TABLE = {}
# ----------------------------------------------------------------------------------- what all share
TABLE["algorithms/equations.py", "equations"] = [
    ("return member_logits.«mean(0)→softmax(-1).mean(0).log()»",
     "fedsdd::eq3_is_the_softmax_of_the_mean_logits", "the mean of the softmaxes"),
    ("«teacher_log_probs→student_log_probs».exp() * («teacher_log_probs→student_log_probs» - "
     "«student_log_probs→teacher_log_probs»)", "kl_is_from_teacher_to_student_by_hand",
     "KL(student || teacher)", "AIJack's FedGEMS"),
    ("teacher_logits«.detach()→».to(wide)", "gradient_of_kl_is_q_minus_p_none_for_teacher",
     "the teacher learns too", "AIJack's FedGEMS"),
    ("detach().to(wide)« / temperature→»", "distillation_is_t_squared_times_mean_kl",
     "the teacher is not softened", "FedDF's avg_probs"),
    ("«→(»F.«log_softmax→softmax»(teacher_logits.detach().to(wide) / temperature, dim=-1)«→ "
     "+ 1e-7).log()»", "kl_of_equal_logits_is_exactly_zero", "1e-7 on the teacher",
     "FedML's FedGKT"),
    ("F.«log_softmax→softmax»(student_logits.to(wide) / temperature, dim=-1)«→.log()»",
     "kl_of_huge_logits_is_exact", "softmax underflows", "FedBE's code"),
    ("terms.«sum→mean»(-1)", "kl_is_from_teacher_to_student_by_hand",
     "the mean over classes: C times too small", "FedBE's code, PFLlib's FedKD"),
    ("«terms = terms.masked_fill→»(", "kl_is_from_teacher_to_student_by_hand", "0 ln 0 is nan"),
    ("return «temperature**2 * →»kl", "distillation_is_t_squared_times_mean_kl", "no temperature²",
     "FedDF's code"),
    ("kl_divergence(«teacher_logits, student_logits→student_logits, teacher_logits», temperature)",
     "distillation_is_t_squared_times_mean_kl",
     "KL(student || teacher): the arguments of kl_divergence are swapped"),
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
    ("= «→values[0] if 'running' in name else »total.to(first.dtype)",
     "average_weights_averages_running_statistics", "the first client's running statistics",
     "PFLlib's FedNTD"),
    ("share * value«.to(wide)→»", "functions::in_every_type_the_result_has_this_type_and_is_near_"
     "float64s[equations.average_weights-float16]", "float16 adds up errors"),
    ("if «first.is_floating_point()→True»:", "average_weights_keeps_counters_whole",
     "counters become fractions"),
    ("«torch.stack(values).amax(0)→values[0]»", "the_average_of_one_model_is_a_copy_of_it",
     "a client's own tensor comes back"),
    ("-(target_probs.detach()«→.log_softmax(-1)»",
     "soft_cross_entropy_by_hand", "the target is a log-softmax", "AIJack's DS-FL"),
    ("-(target_probs.detach()«→.softmax(-1)»", "soft_cross_entropy_by_hand",
     "a softmax over probabilities", "AIJack's DS-FL")]
TABLE["federation.py", "shared"] = [
    ("np.random.default_rng(np.random.SeedSequence(«seed→10», ",
     "only_equal_keys_give_equal_numbers", "the seed is always 10", "FedML's partition_data"),
    ("with «torch.random.fork_rng(devices=gpus)→contextlib.nullcontext()»:",
     "contracts::the_federation_and_the_global_generators_are_left_alone[fedavg]",
     "the global generator is reset", "FedML's _client_sampling"),
    ("«torch.default_generator.manual_seed(number)→pass»",
     "contracts::the_order_of_the_clients_does_not_matter[fedavg]",
     "initial weights depend on what was drawn before")]
TABLE["algorithms/clients.py", "shared"] = [
    ("max(1, «round→int»(participation * num_clients))",
     "participation_is_a_share_at_least_one_client", "the share is rounded down")]
TABLE["algorithms/uploads.py", "shared"] = [
    ("bool((x.abs() < HUGE).«all→any»())", "logits::an_upload_with_one_bad_number_is_left_out[inf]",
     "one good number is enough"),
    ("if «is_usable(upload)→True»}", "fedavg::non_finite_upload_is_left_out",
     "an upload with nan is averaged"),
    ("«attack_models(attack, uploads, ids)→uploads»",
     "contracts::an_attack_sees_every_round_and_what_it_returns_arrives[fedavg]",
     "attackers upload what they trained")]
TABLE["algorithms/training.py", "shared"] = [
    ('        «optimizer.param_groups[0]["lr"] = lr→pass»',
     "plateau::a_kept_optimizer_takes_the_rate_of_the_round",
     "the fallen rate does not reach the optimizer"),
    ("for rows in order.split(batch_size)«→ if len(rows) == batch_size»)",
     "every_pass_has_each_sample_once_in_a_new_order",
     "the last, smaller batch is dropped", "FedML's FedGKT, PFLlib"),
    ("«range(epochs) if steps is None else itertools.count()→range(epochs)»",
     "so_many_steps_are_the_first_batches_of_as_many_passes_as_needed", "steps end with the pass"),
    ("    model.«eval→train»()", "prediction_is_pure_and_image_by_image",
     "teachers predict in train mode", "AIJack's FedGEMS and DS-FL, flearn"),
    ("model.train(«was_training→»)", "prediction_is_pure_and_image_by_image", "ends in train mode",
     "FedDF's code"),
    ("load_model(fed, «member→members[0]»)", "predict_members_is_one_prediction_per_state",
     "every member is the first one"),
    ("    model.«train→eval»()", "contracts::augmentation_is_for_what_is_trained_on_alone[dsfl]",
     "training in eval mode"),
    ("batch_loss = loss(forward(fed, model, batch), rows«→.sort().values»)",
     "logits::a_loss_is_given_the_rows_of_its_images", "targets of other images"),
    ('if «saved["optimizer"] is not None→False»:',
     "logits::saved_and_restored_is_as_if_never_saved[adam-Adam]", "the optimizer forgets"),
    ("«partial(→»torch.optim.Adam«, amsgrad=True)→»",
     "baselines::amsgrad_is_the_papers_adam[amsgrad-True]", "plain Adam as AMSGrad"),
    ("enabled=«fed.amp or →»", "contracts::amp_reaches_training_and_prediction[fedavg]",
     "always float32"),
    ("cache_enabled=«False→True»",
     "library::a_run_inside_an_autocast_is_one_with_amp[False-fedavg]",
     "inside a user's autocast, the weights of the first batch"),
    ("«optimizer.step()→pass»", "contracts::it_learns[dsfl]", "nothing is learned")]
TABLE["algorithms/evaluation.py", "shared"] = [
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
    ("rng, fed.device«, local_steps→»)", "contracts::local_steps_are_counted_over_passes[fedavg]",
     "--local-steps has no effect"),
    ("if «not uploads→len(uploads) < 2»:", "a_federation_of_one_is_local_training[fedprox]",
     "a lone client is not heard"),
    ("sample_clients(len(fed.private), «participation→1.0»,",
     "contracts::only_the_clients_of_a_round_are_trained[fedavg]", "everybody is trained"),
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
     "the global model gets a gradient")]
TABLE["algorithms/scaffold.py", "scaffold"] = [
    ("grad «- client_control +→+ client_control -» server_control",
     "correction_is_servers_minus_own_control", "the correction has the wrong sign"),
    ("(«global_params - local_params→local_params - global_params»)", "new_control_by_hand",
     "the new control is negated", "pfl-research's SCAFFOLD"),
    ("/ «(steps * lr)→lr»", "new_control_by_hand", "K is missing"),
    ("client_control «- server_control →»+ (global",
     "new_control_is_the_mean_gradient_along_the_path", "no server's control"),
    ("«w.grad = →»corrected_gradient(w.grad, ", "scaffold_round_against_slow_loop",
     "computed, not used", "FedLab's SCAFFOLD"),
    ('"client_control": «new_control→client_control»}', "scaffold_round_against_slow_loop",
     "clients' controls stay 0", "FedML's and flearn's SCAFFOLD"),
    ('change = «sum→list»(«upload→uploads.values())[-1]»["model"][name] - x« for upload in '
     'uploads.values()) / len(uploads)→»', "opposite_updates_cancel_and_one_is_one_nth",
     "only the last client's update counts", "FedML's SCAFFOLD"),
    ("«len(uploads) / num_clients * →»change", "opposite_updates_cancel_and_one_is_one_nth",
     "divided by the active clients, not by all", "flearn's SCAFFOLD"),
    ("x + «global_lr * →»change", "scaffold_round_against_slow_loop",
     "the global learning rate is missing"),
    ("torch.optim.SGD(model.parameters(), lr=lr«→, momentum=0.9»)",
     "scaffold_round_against_slow_loop", "with momentum", "easyFL's SCAFFOLD"),
    ("w«.detach()→», steps,", "controls_hold_parameters_only", "controls drag their graph along")]
TABLE["algorithms/fedntd.py", "fedntd"] = [
    ("beta: float = «1→0».0", "command_line::defaults_are_the_papers[fedntd]",
     "beta is 0 by default: FedAvg under another name", "PFLlib's FedNTD"),
    ("«logits[is_other].view(num_samples, num_classes - 1)→logits * is_other»",
     "not_true_loss_by_hand[1.0]", "the label's logit is 0, not left out"),
    ("«not_true(teacher_logits, labels), not_true(logits, labels)→"
     "not_true(logits, labels), not_true(teacher_logits, labels)»,", "not_true_loss_by_hand[1.0]",
     "KL(student || teacher)"),
    ("if «keep_true→True»:", "the_labels_logit_neither_counts_nor_learns_from_the_teacher",
     "the label's class is distilled, too"),
    ("«beta * →»not_true_loss(", "fedntd_with_beta_0_is_fedavg_bit_for_bit[with_dropout-False]",
     "beta has no effect"),
    ("predict_logits(fed, «teacher→model», batch)",
     "two_rounds_of_fedntd_against_a_slow_loop[False]", "the client is its own teacher"),
    ("predict_logits(fed, teacher, «batch→images[rows]»)",
     "the_teacher_is_the_servers_model_in_eval_mode_on_the_students_view",
     "the teacher sees another view than the student")]
TABLE["algorithms/fedgen.py", "fedgen"] = [
    ("F.cross_entropy(«mean_logits, labels→logits.flatten(0, 1), labels.repeat(len(logits))»)",
     "eq4_is_the_loss_of_the_mean_logits[None-1.0]", "the mean of the losses", "FedGen's code"),
    ("tensordot(weights« / weights.sum()→», logits",
     "eq4_is_the_loss_of_the_mean_logits[weights1-2.5]", "weights that do not sum to 1"),
    ('models = [«upload→server»["model"] for', "two_rounds_against_a_slow_loop",
     "the global model is every teacher", "FL-bench's FedGen"),
    ("rng.«standard_normal→random»((count, NOISE))", "two_rounds_against_a_slow_loop",
     "uniform noise", "FedGen's code, HtFLlib"),
    ("rng.choice(fed.num_classes, count«, p=label_shares→»)", "two_rounds_against_a_slow_loop",
     "all labels are equally likely", "FedGen's code"),
    ('draw_features(fed, generator, «server["label_shares"]→labels.bincount(minlength='
     'fed.num_classes).double().div(len(labels)).numpy()»,', "two_rounds_against_a_slow_loop",
     "labels of the client's own classes", "FL-bench's FedGen"),
    ("torch.«zeros→ones»(fed.num_classes, dtype", "two_rounds_against_a_slow_loop",
     "counters start at 1", "FedGen's code"),
    ("            if generated«→ and t > 1»:",
     "two_rounds_against_a_slow_loop", "nothing is generated in round 1", "FedGen's code"),
    ("loss = loss + «weight→10» * F", "two_rounds_against_a_slow_loop",
     "a weight of 10 that the paper lacks", "FedGen's code"),
    ("(«-→»noise_distance", "diversity_loss_by_hand", "alike is rewarded"),
    ("at_client), «attack→None»)", "an_attack_poisons_the_teachers_and_not_the_counts",
     "nobody is malicious")]
# ----------------------------------------------------------------------- distillation on the server
TABLE["algorithms/feddf.py", "feddf"] = [
    ("«→100 * »accuracies >= 1.2 / num_classes", "drop_worst_by_hand",
     "percent against a share: nobody is dropped", "FedDF's code"),
    ("stays« if stays.any() else torch.ones_like(stays)→»", "drop_worst_by_hand",
     "everyone is dropped", "FedDF's code"),
    ("client_members(fed, «kept→uploads»), fed.public.images",
     "worse_than_a_guess_neither_counts_nor_teaches", "who is dropped still teaches"),
    ("teacher_logits = ensemble_logits(client_logits«→.softmax(-1)»)«→.log()»",
     "feddf_round_by_hand", "the mean of probabilities for the mean of logits"),
    ("server_batch_size=«server_batch_size→batch_size»,", "feddf_round_by_hand",
     "the server takes the clients' batch size", "FedDF's code"),
    ("validation_accuracy = accuracy(«logits, fed.validation→predict_logits(fed, model, "
     "fed.test.images), fed.test».labels)", "patience_ends_and_returns_the_best",
     "early stopping on the test set", "FedDF's code"),
    ("best_state, best_step = «-1→0».0, None", "a_student_wrong_at_every_look_is_that_of_the_first",
     "a student that is always wrong is never returned"),
    ("accuracy(ensemble_logits(client_logits«→.softmax(-1)»), fed.test.labels)",
     "the_ensemble_predicts_by_mean_logits[feddf]", "the ensemble is of probabilities"),
    ("            if «→not »cosine:", "the_papers_student_against_a_slow_adam",
     "the rate does not fall")]
TABLE["algorithms/fedbe.py", "fedbe"] = [
    ("deviations = (p«→ * 0 + sum(weights) / len(weights)» * (state_dict[name]",
     "gaussian_sample_by_hand", "the variance is not weighted", "FedBE's code"),
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
     "the average does not vote")]
TABLE["algorithms/fedsdd.py", "fedsdd"] = [
    ('stream(fed.seed, "mask", «t, →»*pair)', "secure_sum::uploads_are_masked_anew_in_every_round",
     "the masks come back every round"),
    ("«rng.permutation(active).tolist()→list(active)»", "groups_change_and_all_meet_the_main_model",
     "the same groups in every round"),
    ("sorted(shuffled[k::K]) for k in «range(K)→reversed(range(K))»",
     "group_clients_gives_the_first_groups_the_remainder", "the last ones are larger"),
    ("if not 1 <= K« <= len(active)→»:", "more_models_than_active_clients_is_an_error",
     "a global model without clients"),
    ("[*ring, ensemble_logits(member_logits)][-R«→ - 1»:]",
     "eq3_the_ring_has_the_mean_logits_of_the_last_R_rounds", "one round too many in the ring"),
    ("teacher_logits = «ensemble_logits(→»torch.stack(ring)«→.sum(0»)«→ / R»",
     "rounds_with_R_2_against_algorithm_1", "divided by R before there are R rounds"),
    ("test_ring = [«*test_ring, →»ensemble_logits(member_logits)]«[-R:]→»",
     "ensemble_accuracy_is_of_K_models_of_each_of_the_last_R_rounds",
     "the ensemble that predicts has one round"),
    ("init=«k→0»)", "initial_models_differ_and_main_is_fedavgs", "K equal initial models"),
    ("group_of[i]]«→ | {x: c for x, c in global_models[0].items() if x == 'client_controls'}»",
     "rounds_with_R_2_against_algorithm_1[scaffold]", "a control of another global model"),
    ("if «is_main(k, K)→True» else average", "rounds_with_R_2_against_algorithm_1",
     "all models distilled"),
    ("    model.«train→eval»()", "distill_moves_the_students_running_statistics",
     "the student learns in eval mode")]
TABLE["algorithms/fedsdd_ablations.py", "fedsdd"] = [
    ('if students != "none"«→ and t > warmup_rounds»:', "warm_up_rounds_have_no_distillation",
     "warm-up rounds are forgotten"),
    ("[«*ring, →»ensemble_logits(member_logits)«→, *ring»]",
     "an_ensemble_of_clients_has_every_client", "the ring keeps the oldest rounds")]
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
    ('"optimizer": client["«revisit→digest»_optimizer"]', "fedmd_round_by_hand",
     "one optimizer for digest and revisit"),
    ("else weights[i] for i in «valid→range(len(valid))»]",
     "weights_stay_with_clients_if_one_is_not_finite", "weights by place")]
TABLE["algorithms/fedmd_transfer.py", "fedmd"] = [
    ("fed.«validation→test» if early_stopping else None", "transfer_never_sees_a_test_set",
     "early stopping on the test set", "FedMD's code"),
    ("if reached > best« + min_delta→»:", "training_ends_after_patience_without_gain",
     "any growth counts"),
    ("«min_delta=min_delta, **PUBLIC_STAGE→**PRIVATE_STAGE»",
     "each_stage_counts_growth_beyond_its_own_min_delta", "the second stage's min_delta"),
    ("isinstance(module, nn.Linear)][«-1→0»]", "the_penalty_is_of_the_last_layers_kernel_alone",
     "the penalty is on the first")]
TABLE["algorithms/fedmd_pooled.py", "fedmd"] = [
    ("t - «1 - →»best_round >=", "pooled_training_stops_for_each_network_on_its_own",
     "a round less than patience"),
    ("«Data(*(torch.cat(parts) for parts in zip(*→»fed.private«)))→[0]»",
     "pooled_is_public_training_and_then_epochs", "one client's data for everyone's")]
TABLE["algorithms/dsfl.py", "dsfl"] = [
    ("(client_probs«.mean(0)→» / temperature).softmax(-1)«→.mean(0)»",
     "era_sharpens_the_mean_and_not_each_client", "each client is sharpened", "Flower's DS-FL"),
    ("«(→»client_probs.mean(0«) / temperature→»).softmax(-1)",
     "era_of_a_one_hot_mean_is_near_one_hot_by_hand", "no temperature", "AIJack's DS-FL"),
    ("predict_logits(fed, model, fed.public.images)«.softmax(-1)→»", "dsfl_round_by_hand",
     "logits in the place of probabilities", "PFLlib's FD"),
    ("if len(valid_probs)«→ > 1»:", "logits::everyone_learns_from_a_single_valid_upload[dsfl]",
     "one upload teaches nobody")]
TABLE["algorithms/fd.py", "fd"] = [
    ("is_other = «1 - torch.eye(→torch.ones(len(means), »len(means)", "others_mean_by_hand",
     "the own row is in the target", "PFLlib's, HtFLlib's and FedGen's FD"),
    ("has_class = means.«any→isfinite().any»(-1)", "others_mean_by_hand",
     "zeros of who lacks the class are averaged in", "FedGen's FD"),
    ("probs = logits.detach()«.softmax(-1)→»", "rounds_of_fd_against_algorithm_1[None]",
     "raw logits are the target of a cross-entropy", "PFLlib's and HtFLlib's FD"),
    ("soft_cross_entropy(logits, «targets[y]→torch.where(targets[y].any(1, True), targets[y], "
     "logits)»)", "rounds_of_fd_against_algorithm_1[None]",
     "without a target a sample learns towards its own logits", "PFLlib's and HtFLlib's FD"),
    ("counts = torch.«zeros→ones»_like(targets[:, :1])", "rounds_of_fd_against_algorithm_1[None]",
     "counts start at 1", "FedGen's FD"),
    ("«gamma * →»distillation ", "fd_with_gamma_0_is_every_client_alone_bit_for_bit[with_dropout]",
     "gamma has no effect"),
    ("client_means = «torch.where(is_valid[:, None, None], uploads, 0.0)→uploads»",
     "logits::non_finite_logits_are_left_out[fd]", "nan is in the targets")]
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
     "liars on one side alone are far")]
TABLE["algorithms/fedgem.py", "fedgem"] = [
    ("trained[i], «server_logits→teacher_logits», public_epochs", "fedgem_round_by_hand",
     "clients learn from their own mean")]
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
    ('confidence«.masked_fill(~reliable, float("-inf"))→».softmax(0)',
     "eq4_unreliable_client_gets_exactly_zero",
     "softmax over all clients, times the mask: the weights sum to less than 1"),
    ("client_logits.to(wide))«.clamp(min=1e-6)→»", "eq4_certain_clients_share_equally", "1 / 0",
     "AIJack's FedGEMS"),
    ("client_logits.to(wide)).clamp(min=1e-«6→3»)",
     "eq4_entropies_below_a_millionth_count_the_same", "H is at least a thousandth"),
    ("«1 / →»entropy(client_logits", "eq4_by_hand", "H for 1/H: the least certain counts most"),
    ("entropy(client_logits«.to(wide)→»)", "functions::in_every_type_the_result_has_this_type_and_"
     "is_near_float64s[fedgems.entropy_weights-float16]", "1 / H overflows: nan"),
    ("«torch.where(reliable, weights, 0.0)→weights»",
     "eq4_eq5_a_logit_that_is_not_finite_reaches_nothing", "nan if nobody is right"),
    ("«torch.where→»(«weights != 0, →»weights * client_logits«, 0.0→»).sum(0)",
     "eq4_eq5_a_logit_that_is_not_finite_reaches_nothing", "0 times nan"),
    ("«torch.where(weights != 0, weights * client_logits, 0.0).sum(0)→(weights * "
     "client_logits.softmax(-1)).sum(0).log()»", "eq5_fused_logits_by_hand",
     "probabilities are mixed, not logits"),
    ("weights «!=→>» 0", "a_weight_of_nan_shows_and_never_makes_a_uniform_teacher",
     "a weight of nan counts as 0"),
    ("torch.where(has_teacher,« epsilon * ce +→» (1 - epsilon) * «→ce + epsilon * »kl, ce)",
     "eq2_by_hand", "epsilon on the wrong term"),
    ("«torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce)→(epsilon * ce + (1 - "
     "epsilon) * kl)[has_teacher].mean() + ce[~has_teacher]».mean()",
     "server_loss_is_one_mean_over_mixed_cases", "a sum of means", "AIJack's FedGEMS"),
    ("kl_divergence(«torch.where(has_teacher[:, None], teacher_logits, 0.0), logits→logits, "
     "torch.where(has_teacher[:, None], teacher_logits, 0.0)»)", "eq2_by_hand",
     "KL(server || teacher): the arguments of kl_divergence are swapped"),
    ("«torch.where(has_teacher[:, None], →»teacher_logits«, 0.0)→»",
     "rows_without_a_teacher_may_hold_anything", "nan from the branch not taken"),
    ("kl_divergence(«server_logits, logits→logits, server_logits»)", "eq6_by_hand",
     "KL(client || server)", "AIJack's FedGEMS"),
    ("checked_logits = «predict_logits→forward»(fed, model«→.train()», images[rows])«→.detach()»",
     "selection_is_in_eval_mode", "judged in train mode", "AIJack's FedGEMS"),
    ("pool.logits[rows«[correct]→»] = checked_logits«[correct]→»",
     "a_round_is_the_papers_algorithm[one epoch]", "wrong logits are pooled"),
    ("has_teacher = from_pool | «from_clients→requests»", "nobody_right_is_plain_cross_entropy",
     "the uniform distribution teaches"),
    ("not is_usable(logits«[requested]→»)", "an_upload_is_bad_only_for_what_was_asked",
     "bad for logits that never travel"),
    ("rows = torch.«nonzero(~pool.mask)[:, 0]→arange(len(labels))»",
     "clients_predict_exactly_what_the_pool_lacks", "clients predict all rows")]
TABLE["algorithms/fedgems_ablations.py", "fedgems"] = [
    ("~alone & «→(»in_pool «→| correct) »& self_distillation",
     "ablations_move_samples_between_cases[self_training]", "the pool is filled too early")]
# ------------------------------------------------------------------------------ feature maps travel
TABLE["algorithms/fedgkt.py", "fedgkt"] = [
    ("distillation_loss(«client_logits, logits→logits, client_logits», temperature) if distill",
     "eq6_by_hand", "the client learns in the server's loss"),
    ("temperature)« if distill else ce→»", "eq6_by_hand", "the server always distills"),
    ("return ce + distillation_loss(«server_logits, logits→logits, server_logits», temperature)",
     "eq7_by_hand", "the server learns in the client's loss"),
    ("distillation_loss(client_logits, logits, temperature) «→/ temperature**2 »if distill",
     "eq6_by_hand", "no temperature²"),
    ("view(fed, i, trainings« - 1→»)", "participation_below_1_against_algorithm_1",
     "the server's logits are of another view", "FedML's FedGKT"),
    ("«view(fed, i, trainings)→fed.private[i].images», dtype",
     "extraction_is_in_eval_mode_of_the_next_view", "feature maps of clean images"),
    ("server_logits[«rows→:len(rows)»] if has_teacher", "two_rounds_against_algorithm_1",
     "logits of other images", "FedML's FedGKT"),
    ("«predict_logits(fed, model, features.float(), CHUNK)→forward(fed, model.train(), "
     "features.float()).detach()»", "server_logits_are_of_the_trained_server", "not in eval mode",
     "FedML's FedGKT")]
TABLE["algorithms/fedgkt_async.py", "fedgkt"] = [
    ('«round(→»(client["trainings"] + 1) * latency«, 9)→»',
     "asynchronous_rounds_against_algorithm_1", "equal arrival times differ")]
TABLE["algorithms/fedgkt_features.py", "fedgkt"] = [
    ("    model.eval()«→, torch.set_grad_enabled(True)»",
     "b3_b15_extraction_is_by_row_and_holds_no_graph", "maps hold a graph", "FedML's FedGKT"),
    ("«accuracy(torch.cat(server_logits), data.labels)→sum(map(accuracy, server_logits, "
     "data.labels.split(CHUNK))) / len(server_logits)»", "two_rounds_against_algorithm_1",
     "a mean over batches", "FedML's FedGKT")]
TABLE["algorithms/split_learning.py", "split_learning"] = [
    ("features.backward(sent«.grad→»)", "split_learning_is_training_the_stacked_network",
     "the map itself comes back, not its gradient"),
    ("state = «copy.deepcopy→»(",
     "contracts::a_state_is_all_that_later_rounds_need[split-learning]", "the next changes it")]
TABLE["algorithms/baselines.py", "baselines"] = [
    ("[«(private, local_epochs), →»(fed.public, public_epochs)«→, (private, local_epochs)»]",
     "public_private_makes_private_steps_then_public_ones", "public steps first"),
    ("lr=lr«→ * max(factors.values(), default=1)»« * factors.get(name, 1)→»",
     "networks_trained_separately_have_separate_plateaus", "one plateau for all networks"),
    ("fed.client_model(name«, init=name→»)", "standalone_trains_each_on_its_own_data",
     "all clients start alike")]
TABLE["attacks.py", "attacks"] = [
    ("return benign.«mean(0)→sum(0) / (len(benign) + 1)» + theta", "eq7_paf_by_hand",
     "divided by all clients"),
    ("benign.std(0«, correction=0→»)", "eq10_lie_by_hand",
     "the sample's standard deviation, nan for one client"),
    ("+ far) / «(→»len(benign)« + 1)→»", "eq11_ofom_by_hand", "n + 1 uploads divided by n"),
    ("math.floor(«→(»num_clients«→ - num_attackers)» / 2 + 1)« - num_attackers→»", "eq9_lie_z",
     "a majority of the benign alone"),
    (" supporters) / «benign→num_clients», 0.001),", "eq9_lie_z", "all clients in the denominator"),
    ("max((«benign→num_clients» - supporters) / «benign→num_clients», 0.001),", "eq9_lie_z",
     "Eq. (9) as printed, with n for all clients"),
    ('torch.«from_numpy(stream("theta", source).standard_normal(shape))→ones(shape)»',
     "us_are_standard_normal", "a constant, which no softmax notices"),
    ("return «→upload.copy_(»forged.to(upload)«→)»", "only_the_attackers_uploads_change",
     "the clients' own tensors are overwritten", "FedML's byzantine attack"),
    ("if «→True or »not benign.numel():", "only_the_attackers_uploads_change",
     "the attack sleeps", "FedML's lazy worker"),
    ("piece«.clamp(min=0)→» if", "attack_on_models_by_hand",
     "a running variance below 0"),
    ("view_as(model[name])«.to(model[name].dtype)→»", "attack_on_models_keeps_every_type[paf]",
     "honest uploads change their types")]
TABLE["partition.py", "partition"] = [
    ("held_out[«rng.permutation→»(", "hold_out_does_not_take_the_first_samples",
     "the first samples of each class"),
    ("hold_out(labels, 0.«5→4», rng)", "halves_differ_by_at_most_one_per_class_and_in_total",
     "two fifths"),
    ("names = names[sizes >«=→» min_size]", "what_cannot_be_split_is_an_error_of_one_line",
     "19 images at least"),
    ("np.array_split(«rng.permutation→np.arange»(len(labels)), num_clients)",
     "iid_class_shares_are_alike", "not shuffled: a client gets one class"),
    ("np.array_split(«rng→np.random.default_rng(10)».permutation(len(labels)), num_clients)",
     "functions::what_is_drawn_depends_on_the_seed[partition.iid]", "always seed 10",
     "FedML's partition_data"),
    (" shares = _dirichlet_shares(alpha, «len(classes)→1», num_clients, "
     "rng)«→.repeat(len(classes), 0)»", "dirichlet_shares_have_mean_and_variance_of_dir",
     "one draw for all classes"),
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
     "fedgkt_table6_scales_with_class_sizes", "all classes are equally large")]
# ------------------------------------------------------------------------ communication, secure sum
TABLE["algorithms/communication.py", "communication"] = [
    ("model.parameters()) * «copies * →»num_clients",
     "bytes_are_proportional_to_clients_and_copies", "controls travel free"),
    ("return number_bytes * sum(p.numel() for p in model.«parameters→state_dict().values»())",
     "fedavg_of_resnet11_costs_what_fedgems_counts", "buffers are counted too"),
    (" * num_classes« * num_clients→»", "logits_bytes_by_hand", "one client's bytes for all"),
    ('"bytes_down": «logits_bytes(down, num_classes, num_clients)→0»',
     "fedgems_table_4_is_whole_rounds_up_and_down[fedgem]", "no download"),
    ("(number_bytes * feature_numbers« + FLOAT_BYTES * num_classes→»)",
     "eq13_features_bytes_by_hand", "the soft labels are forgotten"),
    ("num_samples * «2 * →»FLOAT_BYTES * feature_numbers", "eq12_split_learning_bytes_by_hand",
     "the gradients' way is forgotten"),
    ("FLOAT_BYTES * «num_answered→num_samples» * num_classes", "features_ledger_by_hand",
     "who was left out is answered all the same"),
    ('get("bytes_up", 0)« + row.get("bytes_down", 0)→»', "bytes_until_by_hand", "uploads alone")]
TABLE["benchmarks/costs.py", "communication"] = [
    ("max(training, distill_seconds« + group_seconds[0]→»)",
     "fedsdd::a_round_takes_the_longer_of_two_chains", "the main model needs no training"),
    ("module.weight«[0]→».numel()", "network_cost_by_hand_on_a_tiny_convolution",
     "each output is charged for all kernels")]
TABLE["experiment/plateau.py", "plateau"] = [
    ("«test=fed.validation, →»public_test=None", "the_test_set_does_not_move_a_rate",
     "the rate falls by the test set", "FedML's FedGKT"),
    ("patience=patience«→ - 1», threshold=0",
     "a_rate_falls_after_more_than_patience_rounds_by_hand", "the rate falls a round early"),
    ("«plateau.load_state_dict(saved)→pass»", "a_resumed_run_goes_on_with_the_fallen_rate",
     "a resumed run forgets the best")]
TABLE["algorithms/secure_sum.py", "secure_sum"] = [
    ("w.«double().→»cpu() * weight", "a_weighted_model_is_not_rounded_to_float32",
     "n_i w_i is rounded to float32"),
    ('sums["model." + name]«.double()→»', "an_average_is_not_rounded_to_float32",
     "the sum is rounded to float32")]
# ------------------------------------- the same dropout in every round, or in every client or model
for file, keys, case in [
        ("scaffold.py", '"local", t«, i→»', "scaffold"), ("feddf.py", '"distil", «t, →»', "feddf"),
        ("fedsdd.py", "*keys«→[:-1]»", "fedsdd"), ("fedgkt.py", '"server"«, event→»', "fedgkt")]:
    TABLE.setdefault((f"algorithms/{file}", "shared"), []).append((
        f"seeded(fed.seed, {keys}", f"no_two_trainings_share_dropout[{case}]",
        "the same dropout in two trainings"))
