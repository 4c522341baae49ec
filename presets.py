"""The numbers behind the flags: what each paper used, what suits the embedded data, what is allowed."""

# --paper: "data" for the federation, and for an algorithm what differs from its signature's defaults.
# FedSDD section 4.1 (and Table 2's alpha 0.1); FedDF's public code; FedGEMS Table 13 and Appendix B; FedGKT Table 10.
ADAM = {"batch_size": 64, "lr": 1e-3, "optimizer": "amsgrad", "weight_decay": 1e-4}
SIXTEEN = {"clients": 16, "partition": "dirichlet_balanced", "alpha": 0.5, "augment": True}
PLAIN = {"drop_worst": False, "patience": None, "max_grad_norm": None, "cosine": False}     # FedDF without its extras
PAPER = {
    "fedsdd": {"data": {"clients": 20, "model": ["resnet20"], "partition": "dirichlet_equal", "alpha": 0.1, "augment": True},
               "fedavg": {}, "fedprox": {}, "scaffold": {}, "fedbe": {}, "fedsdd": {},
               "feddf": {"lr": 0.8, **PLAIN, "server_optimizer": "sgd", "server_lr": 0.1, "server_batch_size": 256,
                         "distill_steps": 5000, "temperature": 4.0}},
    "feddf": {"data": {"clients": 20, "model": ["resnet8"], "partition": "dirichlet_equal", "alpha": 1.0, "augment": True},
              "fedavg": {"lr": 0.1}, "feddf": {}},
    "fedgems": {"data": {**SIXTEEN, "model": ["bottleneck11"], "public": "half"},
                "fedavg": {"rounds": 200, "participation": 1.0, "local_epochs": 20, **ADAM}, "centralized": {},
                "feddf": {"rounds": 100, "participation": 1.0, "local_epochs": 40, **ADAM, **PLAIN, "server_optimizer": "amsgrad",
                          "server_batch_size": 64, "distill_steps": 1955}},    # 5 epochs of 25,000 public images
    "fedgkt": {"data": {**SIXTEEN, "model": ["bottleneck56"]},
               "fedavg": {"rounds": 200, "participation": 1.0, "local_epochs": 20, **ADAM},
               "centralized": {"rounds": 300, "lr": 3e-3}},
}

# Without --paper, on the embedded data: what runs in under a minute on two CPU cores with the embedded data.
FAST = {"rounds": 20, "local_epochs": 5, "batch_size": 32, "lr": 0.1}
QUICK_START = {
    "data": {"model": ["cnn"]},
    "fedavg": FAST, "fedprox": FAST, "scaffold": FAST,
    "feddf": {**FAST, "distill_steps": 100, "check_every": 20, "patience": 60},
    "fedbe": {**FAST, "distill_steps": 100, "server_batch_size": 128},
    "fedsdd": {**FAST, "distill_steps": 100, "server_batch_size": 128},
    "centralized": {"rounds": 20, "batch_size": 64},
}

DEFAULTS = {"dataset": "glyphs", "data_root": "data", "model": ["resnet20"], "clients": 20, "partition": "dirichlet_equal",
            "alpha": 0.1, "public": None, "public_size": None, "validation": None, "augment": False, "amp": False}

at_least_0 = (lambda x: 0 <= x < float("inf"), "0 or more")
at_least_1 = (lambda x: 1 <= x < 2**31, "1 or more")
positive = (lambda x: 0 < x < float("inf"), "greater than 0")
RANGES = {  # one word, one range, in every algorithm
    "rounds": at_least_1, "local_epochs": at_least_1, "batch_size": at_least_1, "K": at_least_1, "R": at_least_1,
    "distill_steps": at_least_1, "server_batch_size": at_least_1, "warmup_rounds": at_least_0, "clients": at_least_1,
    "samples": at_least_0, "check_every": at_least_1, "patience": at_least_1, "public_size": at_least_1,
    "validation": (lambda x: 0 < x < 1, "greater than 0 and less than 1"), "threads": (lambda x: 1 <= x <= 1024, "from 1 to 1024"),
    "lr": positive, "server_lr": positive, "global_lr": positive, "temperature": positive, "alpha": positive,
    "concentration": positive, "max_grad_norm": positive,
    "mu": at_least_0, "weight_decay": at_least_0, "participation": (lambda x: 0 < x <= 1, "in (0, 1]"),
}
