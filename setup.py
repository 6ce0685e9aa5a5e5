"""Build the C kernels where there is a compiler; the package installs without one too."""

import shutil
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

WORKBOOK = ("notebooks", "params", "constraints.txt")  # what `quarl init` lays out, from a wheel too


class BuildWithWorkbook(build_py):
    """Put notebooks and params into the package that is built; a checkout has them beside it."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for name in WORKBOOK:
                target = Path(self.build_lib, "quarl_lib", "workbook", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                if Path(name).is_dir():
                    files = shutil.ignore_patterns(".*", "__pycache__")
                    shutil.copytree(name, target, ignore=files, dirs_exist_ok=True)
                else:
                    shutil.copyfile(name, target)


setup(
    cmdclass={"build_py": BuildWithWorkbook},
    ext_modules=[
        Extension(
            "quarl_lib.inference._native",
            sources=sorted(glob("quarl_lib/inference/kernels/*.c")),
            depends=sorted(glob("quarl_lib/inference/kernels/*.h")),
            # -ffp-contract=off: the float code must give the same bits on every CPU; see kernels.h
            extra_compile_args=["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"],
            optional=True,
        )
    ],
)
