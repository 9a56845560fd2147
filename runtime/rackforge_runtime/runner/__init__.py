"""The candidate runner: what executes a kernel behind the judge's wall.

Standard library only, so that a bare interpreter in an almost empty file system runs it; torch is imported for
Python and Triton candidates alone. Nothing here is trusted by the judge: it knows no expected output, no seed, no
threshold, and what it says about time and success is a claim that the other side of the socket checks.
"""
