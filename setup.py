"""Build the C kernels where there is a compiler; the package installs without one too."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "quarl_lib.inference._native",
            sources=sorted(glob("quarl_lib/inference/kernels/*.c")),
            depends=sorted(glob("quarl_lib/inference/kernels/*.h")),
            # -ffp-contract=off: the float code must give the same bits on every CPU; see kernels.h
            extra_compile_args=["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"],
            optional=True,
        )
    ]
)
