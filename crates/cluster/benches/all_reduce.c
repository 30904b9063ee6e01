/* The same measurement with MPI: all-reduce of 64-bit sums, in place; prints bytes and microseconds each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i + 1 < argc; i += 2) {
        long bytes = atol(argv[i]), times = atol(argv[i + 1]), count = bytes / 8;
        long *data = malloc(bytes);
        double begun = 0;
        for (long n = -(times / 10 + 1); n < times; n++) {
            if (n == 0) {
                MPI_Barrier(MPI_COMM_WORLD);
                begun = MPI_Wtime();
            }
            for (long k = 0; n < 0 && k < count; k++)
                data[k] = rank;
            MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        }
        if (rank == 0)
            printf("%ld %.3f\n", bytes, (MPI_Wtime() - begun) * 1e6 / times);
        free(data);
    }
    MPI_Finalize();
    return 0;
}
