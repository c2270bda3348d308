package proclog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"sigmaos.dev/sigma"
)

// Archive is a file with a record of each of some procs that have ended, which the next program of
// its kind reads. Records are added at its end. It is written anew when most of it is of procs that
// were forgotten. It is safe for concurrent use. Lock: Archive.io is taken before Archive.mu.
type Archive struct {
	path string

	io   sync.Mutex
	file *os.File // io
	size int64    // io; of what is whole

	mu      sync.Mutex
	records map[sigma.ProcID]int64 // mu; bytes of each that counts; 0 = it is expected
	live    int64                  // mu; bytes of all
}

// archiveSlack is how much may be in the file of forgotten procs beside as much again as counts.
const archiveSlack = 1 << 20

// A record in the file is the length of the rest, its checksum, the length of the proc's id, the
// id, and the record.
const (
	frameHead  = 8
	frameMost  = 64 << 20 // more is no record
	frameIDMax = 255
)

var errFrame = errors.New("the record is cut")

// OpenArchive finds what the file has. A record that a crash cut, and what follows it, is dropped.
func OpenArchive(path string) (*Archive, error) {
	a := &Archive{path: path, records: map[sigma.ProcID]int64{}}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return a, sigma.Wrap("proclog.OpenArchive", path, err)
	}
	a.file = f
	err = frames(f, func(id sigma.ProcID, frame []byte) error {
		n := int64(len(frame))
		a.size += n
		a.live += n - a.records[id]
		a.records[id] = n
		return nil
	})
	if err == nil {
		err = f.Truncate(a.size)
	}
	return a, sigma.Wrap("proclog.OpenArchive", path, err)
}

// frames reads a file from its beginning to the first record that is not whole.
func frames(f *os.File, each func(id sigma.ProcID, frame []byte) error) error {
	in := bufio.NewReaderSize(io.NewSectionReader(f, 0, 1<<62), 256<<10)
	for {
		id, frame, err := nextFrame(in)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errFrame) {
				return nil
			}
			return err
		}
		if err := each(id, frame); err != nil {
			return err
		}
	}
}

func nextFrame(in *bufio.Reader) (sigma.ProcID, []byte, error) {
	head, err := in.Peek(frameHead)
	if err != nil {
		return "", nil, err
	}
	n := binary.LittleEndian.Uint32(head)
	if n < 1 || n > frameMost {
		return "", nil, errFrame
	}
	frame := make([]byte, frameHead+int(n))
	if _, err := io.ReadFull(in, frame); err != nil {
		return "", nil, err
	}
	body := frame[frameHead:]
	if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(frame[4:]) || int(body[0]) >= len(body) {
		return "", nil, errFrame
	}
	return sigma.ProcID(body[1 : 1+body[0]]), frame, nil
}

// Expect says that Add will be called for a proc, unless Forget is before.
func (a *Archive) Expect(id sigma.ProcID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.records[id]; !ok {
		a.records[id] = 0
	}
}

// Has reports whether a proc is in the archive or expected.
func (a *Archive) Has(id sigma.ProcID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.records[id]
	return ok
}

// Empty reports whether it has none.
func (a *Archive) Empty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.records) == 0
}

// Forget drops a proc. Its record is in the file until that is written anew. It never waits for the
// disk.
func (a *Archive) Forget(id sigma.ProcID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.live -= a.records[id]
	delete(a.records, id)
}

// Record is what is kept of a proc.
type Record struct {
	ID   sigma.ProcID
	Data []byte
}

// Add writes records of procs that are expected. What cannot be written is not kept.
func (a *Archive) Add(rs []Record) error {
	a.io.Lock()
	defer a.io.Unlock()
	var text []byte
	lengths := map[sigma.ProcID]int64{}
	a.mu.Lock()
	for _, r := range rs {
		was, expected := a.records[r.ID]
		if n := 1 + len(r.ID) + len(r.Data); expected && was == 0 && len(r.ID) <= frameIDMax && n <= frameMost {
			at := len(text)
			text = append(binary.LittleEndian.AppendUint32(text, uint32(n)), 0, 0, 0, 0, byte(len(r.ID)))
			text = append(append(text, r.ID...), r.Data...)
			binary.LittleEndian.PutUint32(text[at+4:], crc32.ChecksumIEEE(text[at+frameHead:]))
			lengths[r.ID] = int64(len(text) - at)
		}
	}
	a.mu.Unlock()
	err := os.ErrClosed
	if a.file != nil {
		_, err = a.file.WriteAt(text, a.size)
	}
	if err != nil {
		if a.file != nil {
			a.file.Truncate(a.size) // a full disk may have taken some of it
		}
		return sigma.Wrap("proclog.Add", a.path, err)
	}
	a.size += int64(len(text))
	a.mu.Lock()
	for id, n := range lengths {
		if _, expected := a.records[id]; expected {
			a.records[id] = n
			a.live += n
		}
	}
	much := a.size > 2*a.live+archiveSlack
	a.mu.Unlock()
	if much {
		return a.rewriteLocked()
	}
	return nil
}

// Each gives the records that count, in the order in which they were added. What it is given is
// each's.
func (a *Archive) Each(each func(Record)) error {
	a.io.Lock()
	defer a.io.Unlock()
	if a.file == nil {
		return nil
	}
	return sigma.Wrap("proclog.Each", a.path, frames(a.file, func(id sigma.ProcID, frame []byte) error {
		if a.counts(id) {
			each(Record{id, frame[frameHead+1+len(id):]})
		}
		return nil
	}))
}

func (a *Archive) counts(id sigma.ProcID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.records[id] > 0
}

// Compact removes from the disk what is forgotten.
func (a *Archive) Compact() error {
	a.io.Lock()
	defer a.io.Unlock()
	a.mu.Lock()
	all := a.size == a.live
	a.mu.Unlock()
	if all || a.file == nil {
		return nil
	}
	return a.rewriteLocked()
}

// rewriteLocked makes the file anew of what counts; a.io is held.
func (a *Archive) rewriteLocked() error {
	f, err := os.OpenFile(a.path+"~", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return sigma.Wrap("proclog.Compact", a.path, err)
	}
	out, size := bufio.NewWriterSize(f, 256<<10), int64(0)
	err = frames(a.file, func(id sigma.ProcID, frame []byte) error {
		if !a.counts(id) {
			return nil
		}
		size += int64(len(frame))
		_, err := out.Write(frame)
		return err
	})
	if err = errors.Join(err, out.Flush()); err == nil {
		err = os.Rename(a.path+"~", a.path)
	}
	if err != nil {
		f.Close()
		os.Remove(a.path + "~")
		return sigma.Wrap("proclog.Compact", a.path, err)
	}
	a.file.Close()
	a.file, a.size = f, size
	return nil
}

// Close ends the use of the file.
func (a *Archive) Close() {
	a.io.Lock()
	defer a.io.Unlock()
	if a.file != nil {
		a.file.Close()
		a.file = nil
	}
}
