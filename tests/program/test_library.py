"""The functions without the program: networks and tensors of one's own. (federation.py's own
promises: test_federation.py.)"""
import pytest
from test_contracts import Net, Server
from test_federation import of_tensors
from torch import nn
from toys import rounds, same, with_batchnorm, with_hidden_layer

from algorithms import feddf, fedgkt, fedmd, fedsdd_ablations


@pytest.mark.parametrize("algorithm, settings", [
    (fedsdd_ablations, {"K": 2, "participation": 1.0, "local_epochs": 1, "distill_steps": 2}),
    (feddf, {"participation": 1.0, "local_epochs": 1, "distill_steps": 20, "check_every": 10}),
    (fedmd, {"transfer_public_epochs": 1, "transfer_local_epochs": 1})])
def test_mixed_networks_of_ones_own_train(algorithm, settings):
    """FedMD's public images have labels, as its transfer learning needs."""
    fed = of_tensors([with_batchnorm, with_hidden_layer])
    (_, start), *_, (metrics, end) = rounds(algorithm, fed, rounds=2, **settings)
    assert end["round"] == 2 and 0 <= metrics["accuracy"] <= 1 and not same(start, end)


class Edge(Net):
    def __init__(self):
        super().__init__(3)


def test_a_servers_network_may_read_feature_maps():
    """It is not tried on images."""
    fed = of_tensors([Edge], server_network=lambda: nn.Linear(7, 3))
    assert fed.num_classes == 3 and fed.server_model().in_features == 7


@pytest.mark.parametrize("network, server", [
    (Edge, lambda: Server(5)), (Edge, lambda: nn.Linear(7, 3)),
    (with_batchnorm, lambda: Server(3))])
def test_a_servers_network_that_does_not_fit_is_refused_before_training(network, server):
    """Another number of outputs, another input; a client's network without feature maps."""
    with pytest.raises(ValueError, match=r"makes no logits \[B, 3\]|methods extract and"):
        next(rounds(fedgkt, of_tensors([network], server_network=server)))
