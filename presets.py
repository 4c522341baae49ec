"""The numbers behind the flags: what each paper used, what suits the embedded data, what is allowed."""

# --paper: "data" for the federation, and for an algorithm what differs from its signature's defaults (and in its "data" what
# the federation has for it alone).
# FedSDD section 4.1 (and Table 2's alpha 0.1); FedDF's public code; FedGEMS Table 13 and Appendix B; FedGKT Table 10.
ADAM = {"batch_size": 64, "lr": 1e-3, "optimizer": "amsgrad", "weight_decay": 1e-4}
SIXTEEN = {"clients": 16, "partition": "dirichlet_balanced", "alpha": 0.5, "augment": True}
PLAIN = {"drop_worst": False, "patience": None, "max_grad_norm": None, "cosine": False}     # FedDF without its extras
EDGE = {"model": ["gkt_edge"], "server_model": "gkt_server55"}
PAPER = {
    "fedsdd": {"data": {"clients": 20, "model": ["resnet20"], "partition": "dirichlet_equal", "alpha": 0.1, "augment": True},
               "fedavg": {}, "fedprox": {}, "scaffold": {}, "fedbe": {}, "fedsdd": {},
               "feddf": {"lr": 0.8, **PLAIN, "server_optimizer": "sgd", "server_lr": 0.1, "server_batch_size": 256,
                         "distill_steps": 5000, "temperature": 4.0}},
    "feddf": {"data": {"clients": 20, "model": ["resnet8"], "partition": "dirichlet_equal", "alpha": 1.0, "augment": True},
              "fedavg": {"lr": 0.1}, "feddf": {}},
    "fedgems": {"data": {**SIXTEEN, "model": ["bottleneck11"], "server_model": "bottleneck56", "public": "half"},
                "fedgems": {}, "fedgem": {}, "dsfl": {}, "cronus": {},
                "fedmd": {**ADAM, "rounds": 200, "local_epochs": 2, "public_batch_size": 64, "transfer_public_batch_size": 64,
                          "transfer_batch_size": 64, "subset_size": None, "kernel_l2": 0.0},
                "standalone": {}, "public-private": {}, "centralized": {}, "centralized-all": {},
                "fedavg": {"rounds": 200, "participation": 1.0, "local_epochs": 20, **ADAM},
                "feddf": {"rounds": 100, "participation": 1.0, "local_epochs": 40, **ADAM, **PLAIN, "server_optimizer": "amsgrad",
                          "server_batch_size": 64, "distill_steps": 1955}},    # 5 epochs of 25,000 public images
    # non-iid: --partition fedgkt_table6 --optimizer nesterov --lr 0.005, the same of the server, --server-epochs 40
    "fedgkt": {"data": {**SIXTEEN, "partition": "iid", "model": ["bottleneck56"]},
               "fedavg": {"rounds": 200, "participation": 1.0, "local_epochs": 20, **ADAM},
               "centralized": {"rounds": 300, "lr": 3e-3}, "fedgkt": {"data": EDGE}, "split-learning": {"data": EDGE}},
    # FedMD on CIFAR: --dataset cifar100 --public cifar10, iid as its code has it; its other three settings are in the README
    "fedmd": {"data": {"clients": 10, "model": [f"fedmd{j}" for j in range(10)], "partition": "few_per_class", "per_class": 3},
              "fedmd": {}, "fedmd-pooled": {}},
}

# Without --paper, on the embedded data: what runs in under a minute on two CPU cores with the embedded data.
FAST = {"rounds": 20, "local_epochs": 5, "batch_size": 32, "lr": 0.1}
SMALL = {"rounds": 10, "local_epochs": 5, "batch_size": 64}
SERVER = {"server_batch_size": 64}
EDGE_SMALL = {"clients": 16, "partition": "dirichlet_balanced", "alpha": 0.5, "model": ["gkt_edge_small"],
              "server_model": "gkt_server_small"}
QUICK_START = {
    "data": {"model": ["cnn"], "server_model": "cnn_large"},
    "fedavg": FAST, "fedprox": FAST, "scaffold": FAST,
    "feddf": {**FAST, "distill_steps": 100, "check_every": 20, "patience": 60},
    "fedbe": {**FAST, "distill_steps": 100, "server_batch_size": 128},
    "fedsdd": {**FAST, "distill_steps": 100, "server_batch_size": 128},
    "fedgkt": {"rounds": 10, "batch_size": 32, "server_batch_size": 32, "server_epochs": 5, "data": EDGE_SMALL},
    "split-learning": {"rounds": 10, "batch_size": 32, "data": EDGE_SMALL},
    "fedmd": {**SMALL, "transfer_public_epochs": 5, "transfer_local_epochs": 10, "subset_size": 1000, "public_batch_size": 64},
    "dsfl": SMALL, "cronus": SMALL, "fedgem": SMALL | SERVER, "fedgems": SMALL | SERVER,
    "public-private": SMALL, "standalone": {"rounds": 20, "batch_size": 64},
    "centralized": {"rounds": 20, "batch_size": 64}, "centralized-all": {"rounds": 20, "batch_size": 64},
    "fedmd-pooled": {"rounds": 20, "transfer_public_epochs": 5},
}

DEFAULTS = {"dataset": "glyphs", "data_root": "data", "classes": None, "model": ["resnet20"], "server_model": "resnet56",
            "clients": 20, "partition": "dirichlet_equal", "alpha": 0.1, "per_class": 3, "public": None, "joint": None,
            "public_size": None, "validation": None, "augment": False, "amp": False, "attack": None, "attackers": None,
            "attack_scale": None, "attack_z": None, "comu": None}

at_least_0 = (lambda x: 0 <= x < float("inf"), "0 or more")
at_least_1 = (lambda x: 1 <= x < 2**31, "1 or more")
positive = (lambda x: 0 < x < float("inf"), "greater than 0")
RANGES = {  # one word, one range, in every algorithm
    "rounds": at_least_1, "local_epochs": at_least_1, "public_epochs": at_least_1, "server_epochs": at_least_1,
    "transfer_public_epochs": at_least_0, "transfer_local_epochs": at_least_0, "transfer_public_batch_size": at_least_1,
    "transfer_batch_size": at_least_1, "public_batch_size": at_least_1, "subset_size": at_least_1, "per_class": at_least_1,
    "lr_patience": at_least_1, "latencies": positive, "attackers": at_least_1, "classes": at_least_0,
    "consensus_weights": at_least_0, "kernel_l2": at_least_0,
    "attack_scale": at_least_0, "attack_z": (lambda x: abs(x) < float("inf"), "finite"),
    "epsilon": (lambda x: 0 <= x <= 1, "from 0 to 1"), "comu": (lambda x: 0 < x <= 1, "in (0, 1]"),
    "malicious_fraction": (lambda x: 0 <= x < 0.5, "at least 0 and less than 0.5"),
    "batch_size": at_least_1, "K": at_least_1, "R": at_least_1,
    "distill_steps": at_least_1, "server_batch_size": at_least_1, "warmup_rounds": at_least_0, "clients": at_least_1,
    "samples": at_least_0, "check_every": at_least_1, "patience": at_least_1, "public_size": at_least_1,
    "validation": (lambda x: 0 < x < 1, "greater than 0 and less than 1"), "threads": (lambda x: 1 <= x <= 1024, "from 1 to 1024"),
    "lr": positive, "server_lr": positive, "global_lr": positive, "temperature": positive, "alpha": positive,
    "concentration": positive, "max_grad_norm": positive,
    "mu": at_least_0, "weight_decay": at_least_0, "participation": (lambda x: 0 < x <= 1, "in (0, 1]"),
}
