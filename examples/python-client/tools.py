"""joblib, Dask and Parsl run functions in the MiniCluster `python-client` (minicluster.yaml, which must be up).

The argument names the library: `python tools.py joblib`.
"""

import sys

from flux_minicluster import FluxExecutor, MiniCluster


def square(number: int) -> int:
    return number * number


def with_joblib(executor: FluxExecutor) -> list[int]:
    """joblib's threads wait, the instance works."""
    from joblib import Parallel, delayed

    def remote(number: int) -> int:
        return executor.submit(square, number).result()

    return Parallel(n_jobs=8, prefer="threads")(delayed(remote)(number) for number in range(8))


def with_dask(executor: FluxExecutor) -> list[int]:
    """Dask's local scheduler takes any executor. The image needs dask as well."""
    import dask

    values = [dask.delayed(square)(number) for number in range(8)]
    return list(dask.compute(*values, scheduler=executor))


def with_parsl(executor: FluxExecutor) -> list[int]:
    """Parsl's thread executor runs the apps, which wait for the instance."""
    import parsl

    @parsl.python_app
    def remote(number: int) -> int:
        return executor.submit(square, number).result()

    with parsl.load(parsl.Config(executors=[parsl.ThreadPoolExecutor(max_threads=8)])):
        return [future.result() for future in [remote(number) for number in range(8)]]


if __name__ == "__main__":
    chosen = {"joblib": with_joblib, "dask": with_dask, "parsl": with_parsl}[sys.argv[1]]
    with MiniCluster.attach("python-client").executor() as executor:
        print(chosen(executor))
