package bench

import (
	"io"
	"os"
)

// The single process that MapReduce is compared with: what a careful programmer writes in an hour.
// A table tells letters, the hash is made while the word is read, words lie in an open-addressing
// table whose keys are in one long array, and files are read in large blocks into one buffer. It
// shares no code with apps/mr.

type wordSlot struct {
	hash   uint64
	count  uint64
	offset uint32
	length uint32
}

type wordTable struct {
	letter [256]bool
	slots  []wordSlot
	used   int
	keys   []byte
}

func newWordTable() *wordTable {
	t := &wordTable{slots: make([]wordSlot, 1<<16)}
	for c := range t.letter {
		t.letter[c] = c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
	}
	return t
}

// FNV-1a, 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// text counts the words of buf and returns where an unfinished last one starts, len(buf) if there
// is none.
func (t *wordTable) text(buf []byte, end bool) int {
	for i := 0; i < len(buf); {
		if !t.letter[buf[i]] {
			i++
			continue
		}
		start, h := i, uint64(fnvOffset)
		for i < len(buf) && t.letter[buf[i]] {
			h = (h ^ uint64(buf[i])) * fnvPrime
			i++
		}
		if i == len(buf) && !end {
			return start
		}
		t.add(buf[start:i], h)
	}
	return len(buf)
}

func (t *wordTable) add(word []byte, h uint64) {
	mask := uint64(len(t.slots) - 1)
	for i := (h ^ h>>32) & mask; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.count == 0 {
			*s = wordSlot{h, 1, uint32(len(t.keys)), uint32(len(word))}
			t.keys = append(t.keys, word...)
			if t.used++; t.used > len(t.slots)/2 {
				t.grow()
			}
			return
		}
		if s.hash == h && string(t.keys[s.offset:s.offset+s.length]) == string(word) {
			s.count++
			return
		}
	}
}

func (t *wordTable) grow() {
	old := t.slots
	t.slots = make([]wordSlot, 2*len(old))
	mask := uint64(len(t.slots) - 1)
	for _, s := range old {
		if s.count == 0 {
			continue
		}
		i := (s.hash ^ s.hash>>32) & mask
		for t.slots[i].count != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
	}
}

// countFiles counts the words of files and returns how many there are, equal ones too.
func countFiles(files []string) (uint64, error) {
	t := newWordTable()
	buf := make([]byte, 1<<20)
	for _, name := range files {
		var err error
		if buf, err = t.file(name, buf); err != nil {
			return 0, err
		}
	}
	total := uint64(0)
	for i := range t.slots {
		total += t.slots[i].count
	}
	return total, nil
}

func (t *wordTable) file(name string, buf []byte) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return buf, err
	}
	defer f.Close()
	for kept := 0; ; {
		if kept == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
		n, err := f.Read(buf[kept:])
		if err != nil && err != io.EOF {
			return buf, err
		}
		text := buf[:kept+n]
		rest := t.text(text, err == io.EOF)
		kept = copy(buf, text[rest:])
		if err == io.EOF {
			return buf, nil
		}
	}
}
