package filestream

import "sigmaos.dev/sigma"

// What the tests of package bulk_test see of the inside. They are apart because the trees whose
// files they stream import this package.

// HeadSize is that of requests and answers.
const HeadSize = headSize

// A ReadRequest, and the head of a WriteRequest, as bytes.
func ReadRequest(count uint32, offset uint64) []byte {
	return request{opRead, count, offset}.append(nil)
}
func WriteRequest(count uint32, offset uint64) []byte {
	return request{opWrite, count, offset}.append(nil)
}

// Answer is the head of an answer of five bytes.
func Answer(status uint32, version sigma.Version) []byte {
	var head [headSize]byte
	answer{status: status, count: 5, version: version}.encode(head[:])
	return head[:]
}

// Next is where c expects the next read.
func (c *Client) Next() int64 { return c.next }

// Reconsider has c ask for pieces before they are wanted again.
func (c *Client) Reconsider() { c.missed = 0 }
