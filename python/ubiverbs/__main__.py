"""`python -m ubiverbs`: the same as `ubiverbs`."""

from ubiverbs import main

main()
