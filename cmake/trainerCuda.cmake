# Enables the language CUDA where the toolkit is: nvcc on PATH, under CUDAToolkit_ROOT or in /usr/local/cuda. Everything
# builds without; CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON says so where it is there. Included from the top folder,
# as enable_language must be.
if(NOT CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(TRAINER_NVCC nvcc HINTS ${CUDAToolkit_ROOT} ENV CUDAToolkit_ROOT ENV CUDACXX PATH_SUFFIXES bin
      PATHS /usr/local/cuda/bin)
    if(TRAINER_NVCC)
      set(CMAKE_CUDA_COMPILER ${TRAINER_NVCC})
    endif()
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    # Code for 8.0 runs on 8.6 and 8.9 as it is; what comes after 9.0 translates the PTX.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc has C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    endif()
    find_package(CUDAToolkit REQUIRED)
  endif()
endif()
