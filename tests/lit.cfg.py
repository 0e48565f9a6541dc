import os
import lit.formats
import lit.util

config.name = "cleave"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test", ".cleave"]
config.excludes = ["unit", "generated", "oracles", "bench", "inputs", "CMakeLists.txt"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = config.cleave_test_output
# Buffers start as NaN in tests, so that a read of what nobody wrote shows.
config.environment["CLEAVE_POISON"] = "1"
# No profile of this machine: predictions are for the one named `threads`.
config.environment["XDG_CONFIG_HOME"] = os.path.join(config.cleave_test_output, "no-settings")
config.environment["PATH"] = os.pathsep.join(
    [config.cleave_bin, config.llvm_bin, os.environ.get("PATH", "")])
config.substitutions.append(("%cleave-opt", os.path.join(config.cleave_bin, "cleave-opt")))
config.substitutions.append(("%cleave", os.path.join(config.cleave_bin, "cleave")))
config.substitutions.append(("%models", os.path.join(config.cleave_source, "models")))
config.substitutions.append(("%oracles", os.path.join(config.cleave_source, "tests", "oracles")))
config.substitutions.append(("%python", config.python))
