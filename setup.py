"""Build the C kernels where there is a compiler; the package installs without one too."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "quarl_lib.inference._native",
            sources=["quarl_lib/inference/_native.c"],
            depends=[],
            extra_compile_args=["-O3", "-std=c11", "-fno-math-errno"],
            optional=True,
        )
    ]
)
