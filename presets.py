"""The numbers behind the flags: each paper's settings, settings for the embedded data, ranges."""

# PAPER[paper] has the settings of --paper: under "data" those of the federation, and under each
# algorithm what differs from the defaults of its signature. An algorithm's own "data" holds the
# flags of the federation that the paper has for this algorithm alone.
# Sources: FedSDD section 4.1 and Table 2 (alpha 0.1); FedDF's public code; FedGEMS Table 13 and
# Appendix B; FedGKT Table 10; FedMD's public code.
ADAM = {"batch_size": 64, "lr": 1e-3, "optimizer": "amsgrad", "weight_decay": 1e-4}
TWENTY_CLIENTS = {"clients": 20, "partition": "dirichlet_equal", "augment": True}
SIXTEEN_CLIENTS = {"clients": 16, "partition": "dirichlet_balanced", "alpha": 0.5, "augment": True}
PLAIN_FEDDF = {"drop_worst": False, "patience": None, "max_grad_norm": None, "cosine": False}
EDGE = {"model": ["gkt_edge"], "server_model": "gkt_server55"}
PAPER = {
    "fedsdd": {
        "data": {**TWENTY_CLIENTS, "model": ["resnet20"], "alpha": 0.1},
        "fedavg": {}, "fedprox": {}, "scaffold": {}, "fedbe": {},
        "fedsdd": {}, "fedsdd-ablations": {},
        "feddf": {"lr": 0.8, **PLAIN_FEDDF, "server_optimizer": "sgd", "server_lr": 0.1,
                  "server_batch_size": 256, "distill_steps": 5000, "temperature": 4.0}},
    "feddf": {
        "data": {**TWENTY_CLIENTS, "model": ["resnet8"], "alpha": 1.0},
        "fedavg": {"lr": 0.1}, "feddf": {}},
    "fedgems": {
        "data": {**SIXTEEN_CLIENTS, "model": ["bottleneck11"], "server_model": "bottleneck56",
                 "public": "half"},
        "fedgems": {}, "fedgems-ablations": {}, "fedgem": {}, "dsfl": {}, "cronus": {},
        "standalone": {}, "public-private": {}, "centralized": {}, "centralized-all": {},
        "fedmd": {**ADAM, "rounds": 200, "local_epochs": 2, "public_batch_size": 64,
                  "transfer_public_batch_size": 64, "transfer_batch_size": 64,
                  "subset_size": None, "kernel_l2": 0.0},
        "fedavg": {**ADAM, "rounds": 200, "participation": 1.0, "local_epochs": 20},
        "feddf": {**ADAM, **PLAIN_FEDDF, "rounds": 100, "participation": 1.0, "local_epochs": 40,
                  "server_optimizer": "amsgrad", "server_batch_size": 64,
                  "distill_steps": 1955}},               # 5 epochs of 25,000 public images
    # Not iid: --partition fedgkt_table6 --optimizer nesterov --server-optimizer nesterov
    # --lr 0.005 --server-lr 0.005 --server-epochs 40
    "fedgkt": {
        "data": {**SIXTEEN_CLIENTS, "partition": "iid", "model": ["bottleneck56"]},
        "fedavg": {**ADAM, "rounds": 200, "participation": 1.0, "local_epochs": 20},
        "centralized": {"rounds": 300, "lr": 3e-3},
        "fedgkt": {"data": EDGE}, "fedgkt-async": {"data": EDGE}, "split-learning": {"data": EDGE}},
    # CIFAR, iid as in the public code: --dataset cifar100 --public cifar10. The README has FedMD's
    # other three settings.
    "fedmd": {
        "data": {"clients": 10, "model": [f"fedmd{j}" for j in range(10)],
                 "partition": "few_per_class", "per_class": 3},
        "fedmd": {}, "fedmd-pooled": {}},
}

# The settings on the embedded data without --paper: each run takes less than a minute on two CPU
# cores.
WEIGHTS = {"rounds": 20, "local_epochs": 5, "batch_size": 32, "lr": 0.1}
LOGITS = {"rounds": 10, "local_epochs": 5, "batch_size": 64}
LOGITS_AND_SERVER = {**LOGITS, "server_batch_size": 64}
SMALL_EDGE = {"clients": 16, "partition": "dirichlet_balanced", "alpha": 0.5,
              "model": ["gkt_edge_small"], "server_model": "gkt_server_small"}
FEDSDD = {**WEIGHTS, "distill_steps": 100, "server_batch_size": 128}
FEDGKT = {"rounds": 10, "batch_size": 32, "server_batch_size": 32, "server_epochs": 5,
          "data": SMALL_EDGE}
QUICK_START = {
    "data": {"model": ["cnn"], "server_model": "cnn_large"},
    "fedavg": WEIGHTS, "fedprox": WEIGHTS, "scaffold": WEIGHTS,
    "feddf": {**WEIGHTS, "distill_steps": 100, "check_every": 20, "patience": 60},
    "fedbe": {**WEIGHTS, "distill_steps": 100, "server_batch_size": 128},
    "fedsdd": FEDSDD, "fedsdd-ablations": FEDSDD,
    "fedgkt": FEDGKT, "fedgkt-async": FEDGKT,
    "split-learning": {"rounds": 10, "batch_size": 32, "data": SMALL_EDGE},
    "fedmd": {**LOGITS, "transfer_public_epochs": 5, "transfer_local_epochs": 10,
              "subset_size": 1000, "public_batch_size": 64},
    "fedmd-pooled": {"rounds": 20, "transfer_public_epochs": 5},
    "dsfl": LOGITS, "cronus": LOGITS, "fedgem": LOGITS_AND_SERVER,
    "fedgems": LOGITS_AND_SERVER, "fedgems-ablations": LOGITS_AND_SERVER,
    "public-private": LOGITS, "standalone": {"rounds": 20, "batch_size": 64},
    "centralized": {"rounds": 20, "batch_size": 64},
    "centralized-all": {"rounds": 20, "batch_size": 64},
}

# The flags of the federation, with their defaults. None: see `complete_flags` in fedkd_minimal.py.
DEFAULTS = {
    "dataset": "glyphs", "data_root": "data", "classes": None, "model": ["resnet20"],
    "server_model": "resnet56", "clients": 20, "partition": "dirichlet_equal", "alpha": 0.1,
    "per_class": 3, "public": None, "joint": None, "public_size": None, "validation": None,
    "augment": False, "amp": False, "lr_patience": None,
    "attack": None, "attackers": None, "attack_scale": None,
    "attack_z": None, "comu": None}

# The range of each number, the same in every algorithm: (a test of the value, the range in words).
at_least_0 = (lambda x: 0 <= x < float("inf"), "0 or more")
at_least_1 = (lambda x: 1 <= x < 2**31, "1 or more")
positive = (lambda x: 0 < x < float("inf"), "greater than 0")
share = (lambda x: 0 < x <= 1, "in (0, 1]")
RANGES = {
    "rounds": at_least_1, "participation": share, "local_epochs": at_least_1,
    "public_epochs": at_least_0, "server_epochs": at_least_1, "batch_size": at_least_1,
    "server_batch_size": at_least_1, "public_batch_size": at_least_1, "lr": positive,
    "server_lr": positive, "global_lr": positive, "lr_patience": at_least_1,
    "weight_decay": at_least_0, "kernel_l2": at_least_0, "max_grad_norm": positive,
    "mu": at_least_0, "temperature": positive, "epsilon": (lambda x: 0 <= x <= 1, "from 0 to 1"),
    "K": at_least_1, "R": at_least_1, "warmup_rounds": at_least_0, "distill_steps": at_least_1,
    "check_every": at_least_1, "patience": at_least_1, "samples": at_least_0,
    "concentration": positive, "subset_size": at_least_1, "consensus_weights": at_least_0,
    "malicious_fraction": (lambda x: 0 <= x < 0.5, "at least 0 and less than 0.5"),
    "transfer_public_epochs": at_least_0, "transfer_local_epochs": at_least_0,
    "transfer_public_batch_size": at_least_1, "transfer_batch_size": at_least_1,
    "min_delta": at_least_0, "latencies": positive,
    "clients": at_least_1, "alpha": positive, "per_class": at_least_1, "classes": at_least_0,
    "public_size": at_least_1,
    "validation": (lambda x: 0 < x < 1, "greater than 0 and less than 1"), "attackers": at_least_1,
    "attack_scale": at_least_0, "attack_z": (lambda x: abs(x) < float("inf"), "finite"),
    "comu": share, "seeds": at_least_0, "threads": (lambda x: 1 <= x <= 1024, "from 1 to 1024"),
}
