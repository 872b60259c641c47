import subprocess
import sys


def test_importing_the_proof_loads_no_runtime_and_no_dagster():
    heavy = {"dagster", "deltalake", "onnx", "onnxruntime", "tensorrt", "cuda", "torch", "transformers"}
    code = f"import sys, resources.proof, resources.proof.contract; print(*{heavy!r} & set(sys.modules))"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == []
