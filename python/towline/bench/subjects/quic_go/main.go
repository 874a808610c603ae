// A server of constant responses on quic-go, as a subject of the bench: server HOST:PORT CERT KEY.
// Over TCP it has HTTP/1.1 and HTTP/2, which the bench's readiness request uses.
package main

import (
	"bytes"
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/quic-go/quic-go/http3"
)

const document = `{"id":"01J8X9Z3K7QFRBQ4PCVE5K8RNH","status":"ok",` +
	`"data":{"name":"roadrunner","version":2,"flags":["alpha","beta"]}}`

func constant(kind string, body []byte) http.HandlerFunc {
	length := strconv.Itoa(len(body))
	return func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header["Content-Type"] = []string{kind}
		header["Content-Length"] = []string{length}
		w.Write(body)
	}
}

func main() {
	mux := http.NewServeMux()
	mux.Handle("/{$}", constant("text/plain", []byte("alive\r\n")))
	mux.Handle("/json", constant("application/json", []byte(document)))
	mux.Handle("/large", constant("application/octet-stream", bytes.Repeat([]byte("x"), 64<<10)))
	mux.Handle("/streaming", constant("application/octet-stream", bytes.Repeat([]byte("x"), 16<<10)))
	mux.Handle("/download", constant("application/octet-stream", bytes.Repeat([]byte("x"), 10<<20)))
	log.Fatal(http3.ListenAndServeTLS(os.Args[1], os.Args[2], os.Args[3], mux))
}
