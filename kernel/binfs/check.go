package binfs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"

	"sigmaos.dev/sigma"
)

// The machines that programs can be for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

const (
	headerSize = 56                    // of a program header (elf(5), Elf64_Phdr)
	headersMax = 64 << 10 / headerSize // what Linux executes (execve(2))
)

// Check says whether the size bytes of r are a program that can run here; the error is of
// KindNoExec and says what is wrong. It reads the headers only, which are nearly always in the
// first few hundred bytes.
func Check(r io.ReaderAt, size int64) error {
	_, err := check(r, size)
	return err
}

// check also tells at which offsets a start will read: where the program is entered, and the ends
// of its segments.
func check(r io.ReaderAt, size int64) (hot []int64, err error) {
	no := func(msg, hint string) ([]int64, error) {
		return nil, &sigma.Error{Op: "binfs.Check", Kind: sigma.KindNoExec, Msg: msg, Hint: hint}
	}
	var magic [4]byte
	if n, err := r.ReadAt(magic[:], 0); n < 4 {
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, sigma.Wrap("binfs.Check", "", err)
		}
		return no("is not a program: it has only "+fmt.Sprint(size)+" bytes", "")
	}
	if bytes.HasPrefix(magic[:], []byte("#!")) {
		return no("is a script", "sigmaOS runs static Linux executables; pass the script to an interpreter that is one")
	}
	if string(magic[:]) != elf.ELFMAG {
		return no("is not an ELF executable", "sigmaOS runs static Linux executables")
	}
	damaged := func(err error) ([]int64, error) {
		if err != nil && !errors.Is(err, io.EOF) { // the bytes could not be had
			return nil, sigma.Wrap("binfs.Check", "", err)
		}
		return no("is a damaged or truncated executable", "build it again")
	}
	var head [64]byte
	if n, err := r.ReadAt(head[:], 0); n < len(head) {
		return damaged(err)
	}
	le := binary.LittleEndian
	machine := elf.Machine(le.Uint16(head[18:]))
	if want := machines[runtime.GOARCH]; machine != want || elf.Class(head[4]) != elf.ELFCLASS64 ||
		elf.Data(head[5]) != elf.ELFDATA2LSB {
		return no(fmt.Sprintf("is built for %s, this machine is %s", machineWord(machine), machineWord(want)),
			"build it for this machine; in Go: GOOS=linux GOARCH="+runtime.GOARCH+" CGO_ENABLED=0 go build")
	}
	if typ := elf.Type(le.Uint16(head[16:])); typ != elf.ET_EXEC && typ != elf.ET_DYN {
		return no("is not an executable but "+typ.String(), "link it; an object file (.o) does not run")
	}
	// Not elf.NewFile, which is not made for hostile files and allocates for as many sections as
	// the file claims to have.
	offset, each, n := le.Uint64(head[32:]), le.Uint16(head[54:]), int(le.Uint16(head[56:]))
	if each != headerSize || n == 0 || n > headersMax || offset > uint64(size) ||
		uint64(n*headerSize) > uint64(size)-offset {
		return damaged(nil)
	}
	headers := make([]byte, n*headerSize)
	if got, err := r.ReadAt(headers, int64(offset)); got < len(headers) {
		return damaged(err)
	}
	entry, loads := le.Uint64(head[24:]), false
	if entry == 0 && elf.Type(le.Uint16(head[16:])) == elf.ET_DYN {
		return no("is a shared library", linkStatic)
	}
	for ; len(headers) > 0; headers = headers[headerSize:] {
		switch elf.ProgType(le.Uint32(headers)) {
		case elf.PT_INTERP:
			return no("is dynamically linked", linkStatic)
		case elf.PT_LOAD: // beyond the end there would be no pages, and the program would die of that at any time
			if from, bytes := le.Uint64(headers[8:]), le.Uint64(headers[32:]); from > uint64(size) ||
				bytes > uint64(size)-from {
				return damaged(nil)
			}
			hot, loads = append(hot, hotIn(headers, entry)...), true
		}
	}
	if !loads {
		return damaged(nil)
	}
	return hot, nil
}

// linkStatic is what to do about a program that needs others.
const linkStatic = "link it statically; C: -static; Go: CGO_ENABLED=0; Rust: --target x86_64-unknown-linux-musl"

// machineWord is what people call a machine.
func machineWord(m elf.Machine) string {
	switch m {
	case elf.EM_X86_64:
		return "x86-64"
	case elf.EM_AARCH64:
		return "arm64"
	}
	return m.String()
}

// hotIn gives the offsets of a segment that a start reads: of one that is written to both ends
// (constructors and variables are at its beginning, and the kernel clears what follows its end),
// and the place of entry. Nothing here is checked against the size.
func hotIn(header []byte, entry uint64) (hot []int64) {
	le := binary.LittleEndian
	flags, offset, address, size := elf.ProgFlag(le.Uint32(header[4:])), le.Uint64(header[8:]), le.Uint64(header[16:]),
		le.Uint64(header[32:])
	if flags&elf.PF_W != 0 && size > 0 {
		hot = append(hot, int64(offset), int64(offset+size-1))
	}
	if entry >= address && entry-address < size {
		hot = append(hot, int64(offset+entry-address))
	}
	return hot
}
