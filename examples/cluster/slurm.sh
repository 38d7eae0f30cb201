#!/bin/bash
# A run on one system for each host: sbatch --nodes=8 examples/cluster/slurm.sh train.py --steps 1000
#SBATCH --job-name=cstorch
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
set -euo pipefail

# Processes meet at the first host of the job. The program runs in the process of rank 0, and the others are systems.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# export GLOO_SOCKET_IFNAME=ib0   # where hosts have several networks

srun torchrun \
    --nnodes="$SLURM_NNODES" --nproc-per-node=1 \
    --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$first:29400" \
    --max-restarts=3 \
    "$@"
