"""placeholder"""

FAMILY = None
