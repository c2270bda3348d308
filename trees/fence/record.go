package fence

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"sigmaos.dev/sigma"
)

// A server that keeps its fences in a file writes one line for each: the epoch, a space, and the
// name as a quoted string. The first line says what the file is, the last that it is whole.

const (
	firstLine = "sigma-fences/1"
	lastLine  = "end"
)

// Encode prints fences as Decode reads them.
func Encode(fences []sigma.Fence) []byte {
	var b bytes.Buffer
	b.WriteString(firstLine + "\n")
	for _, f := range fences {
		fmt.Fprintf(&b, "%d %s\n", uint64(f.Epoch), strconv.Quote(f.Name))
	}
	b.WriteString(lastLine + "\n")
	return b.Bytes()
}

// Decode reads what Encode printed. A file that is damaged is an error, of KindOther: to go on
// without it would admit the deposed.
func Decode(data []byte) ([]sigma.Fence, error) {
	bad := func(line int) error {
		return &sigma.Error{Op: "fence.Decode", Kind: sigma.KindOther,
			Msg: fmt.Sprintf("line %d of the list of fences is damaged", line)}
	}
	lines := strings.Split(string(data), "\n")
	n := len(lines)
	if n < 3 || lines[0] != firstLine || lines[n-1] != "" || lines[n-2] != lastLine {
		return nil, bad(n)
	}
	known := map[string]bool{}
	var out []sigma.Fence
	for i, line := range lines[1 : n-2] {
		number, quoted, _ := strings.Cut(line, " ")
		epoch, err := strconv.ParseUint(number, 10, 64)
		name, qerr := strconv.Unquote(quoted)
		if err != nil || qerr != nil || epoch == 0 || name == "" || len(name) > sigma.PathMax || known[name] ||
			len(quoted) > 0 && quoted[0] != '"' {
			return nil, bad(i + 2)
		}
		known[name] = true
		out = append(out, sigma.Fence{Name: name, Epoch: sigma.Epoch(epoch)})
	}
	return out, nil
}
