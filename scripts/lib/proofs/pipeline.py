"""`halfmq pipeline` without the broker's packages. Its modules are imported, and Spark with them; no session starts."""

import importlib
import importlib.util
import pkgutil
import subprocess
import sys

import halfmq_pipeline

assert importlib.util.find_spec("sqlalchemy") is None
modules = [each.name for each in pkgutil.walk_packages(halfmq_pipeline.__path__, "halfmq_pipeline.")]
for module in [*modules, "pandas"]:  # Spark imports that one when it is asked for rows.
    importlib.import_module(module)
for driver in ("pyspark", "pyarrow", "matplotlib", "jinja2", "pymysql"):
    assert driver in sys.modules, driver
# The commands are among the modules; one of them shows that they are found. Each takes seconds to import Spark.
ran = subprocess.run(["halfmq", "pipeline", "archive", "--help"], check=False, capture_output=True, text=True)
assert ran.returncode == 0, ran
print(f"halfmq pipeline starts, and its {len(modules)} modules are imported")
