/* Messages back and forth between two ranks: "BYTES MEDIAN FAST" a line, microseconds one way; FAST is the fastest tenth, which
 * a busy machine spoils less. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 2000 };

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    static char message[1 << 20];
    static double times[MOST];
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int large = 0; large <= 1; large++) {
        int bytes = large ? 1 << 20 : 1;
        int count = large ? MOST / 10 : MOST;
        for (int i = -count / 10; i < count; i++) {
            double start = MPI_Wtime();
            if (rank == 0) {
                MPI_Send(message, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
                MPI_Recv(message, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else if (rank == 1) {
                MPI_Recv(message, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(message, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
            }
            if (i >= 0)
                times[i] = (MPI_Wtime() - start) / 2 * 1e6;
        }
        qsort(times, count, sizeof times[0], by_size);
        if (rank == 0)
            printf("ping %d %.2f %.2f\n", bytes, times[count / 2], times[count / 10]);
    }
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
