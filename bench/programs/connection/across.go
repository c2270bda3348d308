package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// serveRevoked takes back its endpoint, again and again, as soon as somebody has dialled it, whom
// it tells when it began to.
func serveRevoked(ctx context.Context, address string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		l, err := c.Listen(ctx, sigma.FormStream)
		if err != nil {
			return err
		}
		if err := c.Publish(ctx, address, l.Endpoint(), 0); err != nil {
			return err
		}
		if first {
			if err := c.Started(ctx); err != nil {
				return err
			}
		}
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if _, err := conn.Write(binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))); err != nil {
			return err
		}
		if err := c.Revoke(ctx, l.Endpoint()); err != nil {
			return err
		}
		conn.Close()
	}
}

// revoked dials what serveRevoked takes back, and prints how long that took until the connection
// ended here.
func revoked(ctx context.Context, address string, count int) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	for last := ""; count > 0; {
		text, err := c.ReadLink(ctx, address)
		if err != nil {
			return err
		}
		if text == last {
			time.Sleep(time.Millisecond)
			continue
		}
		last = text
		e, err := sigma.ParseEndpoint(text)
		if err != nil {
			return err
		}
		conn, err := c.Dial(ctx, e)
		if err != nil {
			return err
		}
		var began [8]byte
		if _, err := io.ReadFull(conn, began[:]); err != nil {
			return err
		}
		if n, err := conn.Read(began[:1]); n != 0 || err == nil {
			return fmt.Errorf("the connection goes on: %d bytes", n)
		}
		fmt.Println(time.Now().UnixNano() - int64(binary.LittleEndian.Uint64(began[:])))
		conn.Close()
		count--
	}
	return nil
}

// listenTLS is a plain server of TLS 1.3, with a certificate that it makes for itself.
func listenTLS(address string) (net.Listener, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return tls.Listen("tcp", address, &tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
}

// dialTLS believes any certificate: who is who is not measured.
func dialTLS(address string) (net.Conn, error) {
	return tls.Dial("tcp", address, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
}
