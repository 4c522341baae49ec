"""What an algorithm stands on: `from federation import ...` gives all of it."""
from federation.averaging import average_weights
from federation.communication import (
    FLOAT_BYTES,
    INDEX_BYTES,
    features_ledger,
    logits_ledger,
    weights_bytes,
    weights_ledger,
)
from federation.evaluation import (
    accuracy,
    by_client,
    client_metrics,
    client_scores,
    disagreement,
    distillation_metrics,
    mean_accuracy,
    mean_own,
    own_accuracy,
    score,
    server_metrics,
    share,
)
from federation.from_tensors import from_tensors
from federation.networks import (
    OPTIMIZERS,
    Optimizer,
    feature_size,
    loaded,
    output_shape,
    prepared,
    restored,
    snapshot,
    with_features,
)
from federation.parallel import (
    active_clients,
    active_in,
    by_architecture,
    count_active,
    on_server,
    parallel_map,
    parallel_map_to_server,
    sample_clients,
    server_threads,
)
from federation.randomness import random_numbers, seeded, stream
from federation.samples import Data, Federation, pick, public_view, restrict_public, union
from federation.training import minibatches, predict, predict_models
from federation.uploads import is_usable, received, received_logits, received_samples, usable
