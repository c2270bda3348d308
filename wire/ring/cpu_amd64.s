#include "textflag.h"

// func cpuid(leaf uint32) (edx uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-12
	MOVL leaf+0(FP), AX
	XORL CX, CX
	CPUID
	MOVL DX, edx+8(FP)
	RET

// func processor() uint32
//
// Linux keeps the number of the processor in the low 12 bits of IA32_TSC_AUX, which RDTSCP puts into CX (vDSO getcpu reads the same).
TEXT ·processor(SB), NOSPLIT, $0-4
	RDTSCP
	ANDL $0xfff, CX
	MOVL CX, ret+0(FP)
	RET

// func relax(n uint32)
TEXT ·relax(SB), NOSPLIT, $0-4
	MOVL n+0(FP), AX
again:
	PAUSE
	SUBL $1, AX
	JNZ  again
	RET
