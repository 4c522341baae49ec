"""Start here: the papers' algorithms in plain Python, one sample at a time. The tests hold the fast
versions in algorithms/ to these pages. fedsdd.py, fedmd.py, fedgems.py, fedgkt.py; each also
prints a round by hand, as in `python -m reference.fedsdd`. linear.py and by_hand.py are shared."""
