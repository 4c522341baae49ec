"""The functions without the program: networks and tensors of one's own. (federation.py's own
promises: test_federation.py.)"""
import pytest
from test_federation import of_tensors
from torch import nn
from toys import rounds, same, with_batchnorm, with_hidden_layer

from algorithms import feddf, fedmd, fedsdd_ablations


@pytest.mark.parametrize("algorithm, settings", [
    (fedsdd_ablations, {"K": 2, "participation": 1.0, "local_epochs": 1, "distill_steps": 2}),
    (feddf, {"participation": 1.0, "local_epochs": 1, "distill_steps": 20, "check_every": 10}),
    (fedmd, {"transfer_public_epochs": 1, "transfer_local_epochs": 1})])
def test_mixed_networks_of_ones_own_train(algorithm, settings):
    """FedMD's public images have labels, as its transfer learning needs."""
    fed = of_tensors([with_batchnorm, with_hidden_layer])
    (_, start), *_, (metrics, end) = rounds(algorithm, fed, rounds=2, **settings)
    assert end["round"] == 2 and 0 <= metrics["accuracy"] <= 1 and not same(start, end)


def test_a_servers_network_may_read_feature_maps():
    """It is not tried on images."""
    fed = of_tensors(server_network=lambda: nn.Linear(7, 3))
    assert fed.num_classes == 3 and fed.server_model().in_features == 7
