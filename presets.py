"""The numbers behind the flags: what each paper used, what suits the embedded data, what is allowed."""

# --paper: "data" for the federation, and for an algorithm what differs from its signature's defaults.
# FedSDD section 4.1 (and Table 2's alpha 0.1); FedGEMS Table 13 and Appendix B; FedGKT Table 10.
ADAM = {"batch_size": 64, "lr": 1e-3, "optimizer": "amsgrad", "weight_decay": 1e-4}
SIXTEEN = {"clients": 16, "partition": "dirichlet_balanced", "alpha": 0.5, "augment": True}
PAPER = {
    "fedsdd": {"data": {"clients": 20, "model": ["resnet20"], "partition": "dirichlet_equal", "alpha": 0.1, "augment": True},
               "fedavg": {}, "fedprox": {}, "scaffold": {}, "fedsdd": {}},
    "fedgems": {"data": {**SIXTEEN, "model": ["bottleneck11"]},
                "fedavg": {"rounds": 200, "participation": 1.0, "local_epochs": 20, **ADAM}, "centralized": {}},
    "fedgkt": {"data": {**SIXTEEN, "model": ["bottleneck56"]},
               "fedavg": {"rounds": 200, "participation": 1.0, "local_epochs": 20, **ADAM},
               "centralized": {"rounds": 300, "lr": 3e-3}},
}

# Without --paper, on the embedded data: what runs in under a minute on two CPU cores with the embedded data.
FAST = {"rounds": 20, "local_epochs": 5, "batch_size": 32, "lr": 0.1}
QUICK_START = {
    "data": {"model": ["cnn"]},
    "fedavg": FAST, "fedprox": FAST, "scaffold": FAST,
    "fedsdd": {**FAST, "distill_steps": 100, "server_batch_size": 128},
    "centralized": {"rounds": 20, "batch_size": 64},
}

DEFAULTS = {"dataset": "glyphs", "data_root": "data", "model": ["resnet20"], "clients": 20, "partition": "dirichlet_equal",
            "alpha": 0.1, "public": None, "public_size": None, "augment": False, "amp": False}

at_least_0 = (lambda x: 0 <= x < float("inf"), "0 or more")
at_least_1 = (lambda x: 1 <= x < 2**31, "1 or more")
positive = (lambda x: 0 < x < float("inf"), "greater than 0")
RANGES = {  # one word, one range, in every algorithm
    "rounds": at_least_1, "local_epochs": at_least_1, "batch_size": at_least_1, "K": at_least_1, "R": at_least_1,
    "distill_steps": at_least_1, "server_batch_size": at_least_1, "warmup_rounds": at_least_0, "clients": at_least_1,
    "public_size": at_least_1, "threads": (lambda x: 1 <= x <= 1024, "from 1 to 1024"),
    "lr": positive, "server_lr": positive, "global_lr": positive, "temperature": positive, "alpha": positive,
    "mu": at_least_0, "weight_decay": at_least_0, "participation": (lambda x: 0 < x <= 1, "in (0, 1]"),
}
