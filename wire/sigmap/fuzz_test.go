package sigmap

import (
	"bytes"
	"slices"
	"testing"
)

// FuzzDecode: no bytes make Decode panic, and what it returns encodes and decodes to itself.
func FuzzDecode(f *testing.F) {
	for _, v := range readVectors(f) {
		if v.message() {
			f.Add(v.bytes)
		}
	}
	f.Add([]byte{7, 0, 0, 0, 144, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		tag, m, err := Decode(data)
		if err != nil {
			return
		}
		buf, err := Encode(nil, tag, m)
		if err != nil {
			if len(data) <= MessageMax {
				t.Fatalf("%+v does not encode: %v", m, err)
			}
			return
		}
		tag2, m2, err := Decode(buf)
		if err != nil || tag2 != tag || !same(m, m2) {
			t.Fatalf("%+v became %+v, %v", m, m2, err)
		}
		Err(m)
	})
}

// FuzzDecodeDirEntries: as FuzzDecode, for the entries of a listing.
func FuzzDecodeDirEntries(f *testing.F) {
	f.Add(vectors()["Rreaddir.entries"].(*Rreaddir).Data)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		es, err := DecodeDirEntries(data)
		if err != nil {
			return
		}
		var again []byte
		for _, e := range es {
			var ok bool
			if again, ok = AppendDirEntry(again, len(data), e); !ok {
				t.Fatalf("%+v does not fit again", e)
			}
		}
		if es2, err := DecodeDirEntries(again); err != nil || !slices.Equal(es, es2) {
			t.Fatalf("%+v became %+v, %v", es, es2, err)
		}
	})
}

// FuzzParse: as FuzzDecode, for what calls carry. The first byte chooses which.
func FuzzParse(f *testing.F) {
	var names []string
	for name := range payloads() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, v := range readVectors(f) {
		if !v.message() {
			f.Add(append([]byte{byte(slices.Index(names, v.name[len("payload."):]))}, v.bytes...))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > DataMax {
			return
		}
		name := names[int(data[0])%len(names)]
		p := payloads()[name]
		if Parse(data[1:], p.code) != nil {
			return
		}
		again, err := Payload(p.code)
		if err != nil || !bytes.Equal(again, data[1:]) {
			t.Fatalf("%s: %x became %x, %v", name, data[1:], again, err)
		}
	})
}
