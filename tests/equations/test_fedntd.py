"""FedNTD: the not-true loss by hand, rounds against a slow loop, the reduction to FedAvg."""
import math

import pytest
import torch
from slow import close, cross_entropy_slope, slow_learner, slow_logits, slow_training
from toys import federation, last, loaded, rounds, sample_clients, with_batchnorm

from algorithms import fedntd
from federation import average_weights, make_rng
from reference.linear import kl_slope

LOCAL = {"local_epochs": 3, "batch_size": 2, "lr": 0.1}
QUICK = {**LOCAL, "rounds": 2, "participation": 0.5, "optimizer": "momentum", "weight_decay": 0.01}
Z, G, Y = torch.tensor([[5., 1., 0.]]), torch.tensor([[0., 2., 0.]]), torch.tensor([0])


@pytest.mark.parametrize("tau", [1., 3.])
def test_not_true_loss_by_hand(tau):
    """Without the label's logit z is [1, 0] and g is [2, 0]: tau² KL, which at 1 is .0671307 (over
    all classes 3.0396512) and at 3 is 9 x .0128542."""
    p, q = (1 / (1 + math.exp(-difference / tau)) for difference in (2, 1))
    expected = tau**2 * (p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)))
    assert fedntd.not_true_loss(Z, Y, G, tau).item() == pytest.approx(expected, abs=1e-6)
    assert tau > 1 or fedntd.distillation_loss(Z, G, 1.).item() > 40 * expected


def test_the_labels_logit_neither_counts_nor_learns_from_the_teacher():
    """A shift of z_y does not move L_NTD; the gradient of z_y is that of the cross-entropy."""
    loss = fedntd.not_true_loss(Z, Y, G, 2.)
    assert torch.equal(fedntd.not_true_loss(Z - torch.tensor([7., 0., 0.]), Y, G, 2.), loss)
    z = Z.clone().requires_grad_()
    fedntd.client_loss(z, Y, G, 2., beta=5., keep_true=False).backward()
    p = Z.softmax(1)[0]
    assert z.grad[0, 0].item() == pytest.approx(p[0].item() - 1)
    assert (z.grad[0, 1:] - p[1:]).abs().min() > .1


def test_the_defaults_distill():
    """With beta 0 it would be FedAvg."""
    assert fedntd.Config().beta == fedntd.Config(**fedntd.PAPER).beta == 1


def slope_of(labels, teacher_logits, tau, beta, keep_true):
    """The derivative by z of CE + beta tau² KL, over the classes that are kept."""
    def slope(n, z):
        kept = [c for c in range(len(z)) if keep_true or c != labels[n]]
        student, teacher = ([values[c] for c in kept] for values in (z, teacher_logits[n]))
        by_kept = dict(zip(kept, kl_slope(student, teacher, tau)))
        return [ce + beta * by_kept.get(c, 0.)
                for c, ce in enumerate(cross_entropy_slope(z, labels[n]))]
    return slope


@pytest.mark.parametrize("keep_true", [False, True])
def test_two_rounds_of_fedntd_against_a_slow_loop(keep_true):
    """With momentum and one rate. Each client's teacher is the model that the server has sent."""
    fed, distilled = federation(sizes=(5, 3, 4, 6)), (2., 0.7, keep_true)        # tau, beta
    expected = fed.client_model(0).state_dict()
    for t in (1, 2):
        active, trained = sample_clients(4, 0.5, make_rng(0, "active", t)), []
        for i in active:
            images, labels = fed.private[i]
            learner = slow_learner(expected)
            slope = slope_of(labels.tolist(), slow_logits(learner, images), *distilled)
            sgd = torch.optim.SGD(learner, lr=0.1, momentum=0.9, weight_decay=0.01)
            slow_training(learner, sgd, images, slope, epochs=3, batch_size=2,
                          rng=make_rng(0, "local", t, i))
            trained.append(dict(zip(expected, (w.detach() for w in learner))))
        expected = average_weights(trained, [len(fed.private[i].labels) for i in active])
    how = dict(zip(("temperature", "beta", "keep_true"), distilled))
    metrics, state = last(rounds(fedntd, fed, **QUICK, **how))
    assert close(state["server"]["model"], expected.values())
    assert metrics["bytes_up"] == metrics["bytes_down"] == 2 * 4 * (3 * 4 + 3)    # of two clients


def test_the_teacher_is_the_servers_model_in_eval_mode_on_the_students_view():
    """With running statistics of its own, which training does not move."""
    calls = []

    def watched(num_classes):
        model = with_batchnorm(num_classes)
        model.register_forward_hook(lambda module, images, logits: calls.append(
            (module.training, images[0].clone(), logits.detach())))
        return model
    fed = federation(sizes=(4,), network=watched, augment=lambda images, rng: images + rng.normal())
    weights = fed.global_model().state_dict()
    weights["0.running_mean"].fill_(2.)
    fedntd.train_client(fed, fedntd.Config(**LOCAL, optimizer="momentum"), 1, 0, weights)
    students, teachers = calls[1::2], calls[::2]
    teacher = loaded(fed.global_model(), weights).eval()
    assert len(students) == len(teachers) == 3 * 2
    for (training, view, _), (teaching, seen, logits) in zip(students, teachers):
        assert training and not teaching and torch.equal(seen, view)
        assert torch.equal(logits, teacher(view))
