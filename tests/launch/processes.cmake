# The command with processes for ranks, against thread ranks and reference trajectories.
if(NOT TETRA_HAS_MPI)
  return()
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(mpirun_n "${MPIEXEC_EXECUTABLE} --oversubscribe --allow-run-as-root --bind-to none -n {n}")
set(torchrun_n "${CMAKE_CURRENT_SOURCE_DIR}/mpi/torchrun_like.sh {n}")

# tetra_process_test(NAME SCRIPT LAUNCHER ARGS...)
function(tetra_process_test name script launcher)
  add_test(NAME processes.${name} COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/launch/${script}.py
    $<TARGET_FILE:tetra_command> ${launcher} ${ARGN})
  set_tests_properties(processes.${name} PROPERTIES TIMEOUT 240 PROCESSORS 2)
endfunction()

tetra_process_test(dp2 processes ${mpirun_n} llama_f64 "dp_replicate_size=2 train.micro_batch_size=2")
tetra_process_test(tp2_sp processes ${mpirun_n} llama_f64 "tp_size=2 sequence_parallel=true")
tetra_process_test(dp2_tp2 processes ${mpirun_n} gpt2 "tp_size=2 dp_replicate_size=2 train.micro_batch_size=2")
tetra_process_test(dp2_tp2_fp32 processes ${mpirun_n} llama "tp_size=2 dp_replicate_size=2")
tetra_process_test(dp2_tp4_sp processes ${mpirun_n} llama_odd_vocab
  "tp_size=4 dp_replicate_size=2 sequence_parallel=true train.micro_batch_size=1")
tetra_process_test(shard2_tp2_sp processes ${mpirun_n} llama_odd_vocab
  "dp_shard_size=2 tp_size=2 sequence_parallel=true train.micro_batch_size=2")
tetra_process_test(hybrid_zero2 processes ${mpirun_n} gpt2
  "dp_replicate_size=2 dp_shard_size=2 zero_stage=2 train.micro_batch_size=1")
tetra_process_test(gloo_shard2 processes ${torchrun_n} llama_f64 "dp_shard_size=2 train.micro_batch_size=2")
tetra_process_test(gloo_tp2_sp processes ${torchrun_n} llama_f64 "tp_size=2 sequence_parallel=true")
tetra_process_test(failures process_failures ${mpirun_n})
tetra_process_test(gloo_failures process_failures ${torchrun_n})
tetra_process_test(kill_resume kill_resume ${mpirun_n})
