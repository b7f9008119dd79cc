/* Each rank says where it runs; then ranks 0 and the last one send a message back and forth. */
#include <mpi.h>
#include <stdio.h>

enum { TIMES = 100 };

int main(int argc, char **argv)
{
    static char message[1 << 20];
    char host[MPI_MAX_PROCESSOR_NAME];
    int rank, size, length;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    printf("rank %d of %d on %s\n", rank, size, host);
    fflush(stdout);

    int partner = rank == 0 ? size - 1 : 0;
    for (int bytes = 1; size > 1 && bytes <= (1 << 20); bytes *= 1024) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int i = 0; i < TIMES && (rank == 0 || rank == size - 1); i++) {
            if (rank == 0) {
                MPI_Send(message, bytes, MPI_CHAR, partner, 0, MPI_COMM_WORLD);
                MPI_Recv(message, bytes, MPI_CHAR, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(message, bytes, MPI_CHAR, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(message, bytes, MPI_CHAR, partner, 0, MPI_COMM_WORLD);
            }
        }
        double half = (MPI_Wtime() - start) / TIMES / 2;
        if (rank == 0)
            printf("%8d bytes: %.1f us, %.1f MB/s\n", bytes, half * 1e6, bytes / half / 1e6);
    }
    MPI_Finalize();
    return 0;
}
