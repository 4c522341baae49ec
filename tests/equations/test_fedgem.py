"""FedGEM: whole rounds, sample by sample."""
import pytest
import torch
from slow import close, slow_accuracy, slow_learner, slow_logits, slow_training, towards_labels
from test_fedgems import QUICK, TWICE, toy
from toys import rounds

from algorithms import fedgem
from federation import make_rng
from reference.fedgems import loss_slope


@pytest.mark.parametrize("more, changes", [
    ({}, {}), (TWICE, {"augment": lambda images, rng: images.flip(-1)})],
    ids=["one epoch", "two, augmented"])
def test_fedgem_round_by_hand(more, changes):
    """Section 3.2: private training, upload, server, broadcast, distillation. The server's teacher
    is the softmax of the mean of all clients' logits; all logits travel both ways."""
    fed, settings, ids = toy(**changes), {**QUICK, **more}, range(4)
    images, labels = fed.augment(fed.public.images, None), fed.public.labels.tolist()
    epsilon = settings["epsilon"]
    clients = [slow_learner(fed.client_model(i, init=i)) for i in ids]
    server = slow_learner(fed.server_model())
    updates = [torch.optim.Adam(learner, lr=0.1, weight_decay=0.01, amsgrad=True)
               for learner in [*clients, server]]
    _, *found = rounds(fedgem, fed, **settings)
    for t, (metrics, state) in enumerate(found, start=1):
        for i in ids:
            slow_training(clients[i], updates[i], fed.augment(fed.private[i].images, None),
                          towards_labels(fed.private[i].labels), batch_size=4,
                          epochs=settings["local_epochs"], rng=make_rng(0, "local", t, i))
        private = [slow_accuracy(client, fed.test) for client in clients]
        uploads = [slow_logits(client, images) for client in clients]                    # [M][N][C]
        teacher = [[sum(upload[n][c] for upload in uploads) / 4 for c in range(3)]
                   for n in range(14)]
        slow_training(server, updates[-1], images,
                      lambda n, z: loss_slope(z, labels[n], teacher[n], epsilon), batch_size=5,
                      epochs=settings["server_epochs"], rng=make_rng(0, "server", t))
        server_logits = slow_logits(server, images)
        for i in ids:
            slow_training(clients[i], updates[i], images,
                          lambda n, z: loss_slope(z, labels[n], server_logits[n], epsilon),
                          batch_size=4, epochs=settings["public_epochs"],
                          rng=make_rng(0, "public", t, i))
        own = [slow_accuracy(client, fed.test) for client in clients]
        assert close(state["server"]["model"], server, atol=1e-4)
        assert all(close(state["clients"][i]["model"], clients[i], atol=1e-4) for i in ids)
        assert metrics["accuracy"] == pytest.approx(slow_accuracy(server, fed.test))
        assert metrics["client_accuracy_distilled"] == pytest.approx(sum(own) / 4)
        assert metrics["client_accuracy_private"] == pytest.approx(sum(private) / 4)
        assert metrics["bytes_up"] == metrics["bytes_down"] == 4 * 4 * 3 * 14
        assert metrics["bytes_down_indices"] == metrics["bad_uploads"] == 0
