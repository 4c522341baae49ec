"""Start here: the papers' algorithms in plain Python, one sample at a time. The tests hold the fast
versions in algorithms/ to these pages. fedsdd.py, fedgems.py, fedgkt.py; linear.py is shared."""
