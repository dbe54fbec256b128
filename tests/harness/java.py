"""Java, which Spark needs: tests that start Spark are skipped without it, and say so."""

import os
import shutil

import pytest

HAS_JAVA = bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None
WHY = "needs Java: apt-get install default-jre-headless"
needs_java = pytest.mark.skipif(not HAS_JAVA, reason=WHY)
