package replica

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"io"

	pb "go.etcd.io/raft/v3/raftpb"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A snapshot, as a file or on its way to a member, is
//
//	magic      8 bytes
//	records    each with its length before it, 4 bytes: the number of commands and the members'
//	           names, then a session each
//	0          4 bytes
//	state      what the machine wrote
//	checksum   4 bytes, CRC-32C of all before it
//
// Numbers are little endian.

const imageMagic = "sgrep\x00\x001"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// image is a state that is to be written.
type image struct {
	Meta     *pb.SnapshotMetadata
	commands uint64 // that the machine has applied
	names    map[uint64]string
	sessions []kept
	write    func(io.Writer) error
}

// codeHead codes the first record.
func codeHead(c *sigmap.Coder, commands *uint64, names *map[uint64]string) {
	c.U64(commands)
	codeNames(c, names)
}

// keptCost is what a session takes in a snapshot beside its result.
const keptCost = 8 + 8 + 4 + 1

func (k *kept) code(c *sigmap.Coder) {
	c.U64(&k.client)
	c.U64(&k.seq)
	c.Data(&k.result)
	c.Bool(&k.tooBig)
}

// WriteTo writes the snapshot. Copies of m can be written at the same time.
func (m *image) WriteTo(w io.Writer) (int64, error) {
	sum := &summing{w: w, sum: crc32.New(castagnoli)}
	out := bufio.NewWriterSize(sum, 64<<10)
	out.WriteString(imageMagic)
	record := func(code func(*sigmap.Coder)) error {
		b, err := encode(code, 64)
		if err == nil {
			out.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b))))
			out.Write(b)
		}
		return err
	}
	if err := record(func(c *sigmap.Coder) { codeHead(c, &m.commands, &m.names) }); err != nil {
		return 0, err
	}
	for i := range m.sessions {
		if err := record(m.sessions[i].code); err != nil {
			return 0, err
		}
	}
	out.Write(make([]byte, 4))
	if err := m.write(out); err != nil {
		return 0, err
	}
	if err := out.Flush(); err != nil {
		return 0, err
	}
	_, err := w.Write(binary.LittleEndian.AppendUint32(nil, sum.sum.Sum32()))
	return sum.n + 4, err
}

// summing writes, counts and sums up.
type summing struct {
	w   io.Writer
	sum hash.Hash32
	n   int64
}

func (s *summing) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	s.sum.Write(b[:n])
	s.n += int64(n)
	return n, err
}

// stored is a snapshot that was read whole: in memory, or a file.
type stored interface {
	io.ReaderAt
	Size() int64
}

func damaged(msg string) error {
	return &sigma.Error{Op: "replica.Restore", Kind: sigma.KindInvalid, Msg: "a snapshot is damaged: " + msg,
		Hint: "remove the member's directory and add the member again, with a new id"}
}

// check compares the checksum.
func check(s stored) error {
	size := s.Size() - 4
	if size < int64(len(imageMagic)) {
		return damaged("it is cut off")
	}
	sum := crc32.New(castagnoli)
	if _, err := io.CopyBuffer(sum, io.NewSectionReader(s, 0, size), make([]byte, 1<<20)); err != nil {
		return sigma.Wrap("replica.Restore", "", err)
	}
	var want [4]byte
	if _, err := s.ReadAt(want[:], size); err != nil && err != io.EOF {
		return sigma.Wrap("replica.Restore", "", err)
	}
	if binary.LittleEndian.Uint32(want[:]) != sum.Sum32() {
		return damaged("its checksum is wrong")
	}
	return nil
}

// restore takes the state of a snapshot whose checksum is right. One in memory is gone then.
func (c *core) restore(meta *pb.SnapshotMetadata, s stored) error {
	var whole io.Reader = io.NewSectionReader(s, 0, s.Size()-4)
	if c, is := s.(*chunks); is { // which grows smaller as the state grows
		whole = c.drain(s.Size() - 4)
	}
	in := bufio.NewReaderSize(whole, 1<<20)
	magic := make([]byte, len(imageMagic))
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != imageMagic {
		return damaged("it does not begin as one")
	}
	var names map[uint64]string
	var commands uint64
	table := newSessions()
	for first := true; ; first = false {
		record, err := readRecord(in)
		switch {
		case err != nil:
			return err
		case record == nil && first:
			return damaged("it names no members")
		case record == nil:
			c.sessions, c.commands = table, commands
			c.index, c.term = meta.GetIndex(), meta.GetTerm()
			c.reconfigure(pb.EnsureConfState(meta.ConfState), names)
			return sigma.Wrap("replica.Restore", "", c.machine.Restore(in))
		case first:
			err = decode(record, func(c *sigmap.Coder) { codeHead(c, &commands, &names) })
		default:
			var k kept
			if err = decode(record, k.code); err == nil && k.client|k.seq != 0 {
				table.add(k)
			}
		}
		if err != nil {
			return damaged(err.Error())
		}
	}
}

// readRecord gives a record; nil after the last.
func readRecord(in io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, damaged("it is cut off")
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n == 0 {
		return nil, nil
	}
	if n > resultMax+keptCost {
		return nil, damaged("a record is too long")
	}
	var b bytes.Buffer // grows with what is there, whatever the length says
	if _, err := io.CopyN(&b, in, n); err != nil {
		return nil, damaged("it is cut off")
	}
	return b.Bytes(), nil
}
