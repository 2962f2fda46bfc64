# SPDX-License-Identifier: Apache-2.0
"""terse's headers as a package of Conan 2: conan create . From this checkout; nothing is built."""

import pathlib
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy


class Terse(ConanFile):
    name = "terse"
    description = "Communication-efficient distributed optimizers, header-only C++20"
    license = "Apache-2.0"
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    exports_sources = "include/*", "LICENSE"
    no_copy_source = True

    def set_version(self):
        text = (pathlib.Path(self.recipe_folder) / "include/terse/core/version.hpp").read_text()
        self.version = ".".join(re.search(rf"TERSE_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration(f"terse is for Linux, not {self.settings.os}")

    def package_id(self):
        self.info.clear()

    def package(self):
        copy(self, "*", self.source_path / "include", self.package_path / "include")
        copy(self, "LICENSE", self.source_path, self.package_path / "licenses")

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.cxxflags = ["-fno-math-errno"]
        self.cpp_info.system_libs = ["pthread"]
        self.cpp_info.set_property("cmake_file_name", "terse")
        self.cpp_info.set_property("cmake_target_name", "terse::terse")
        self.cpp_info.set_property("pkg_config_name", "terse")
