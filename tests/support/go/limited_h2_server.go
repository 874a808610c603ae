// HTTP/2 server of Go's net/http with a limit of streams: go run limited_h2_server.go PORT LIMIT KEY CERT.
// Without KEY and CERT it speaks HTTP/2 without TLS.
package main

import (
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	limit, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(5 * time.Millisecond)
		w.Write([]byte("hello"))
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Addr:      "127.0.0.1:" + os.Args[1],
		Handler:   handler,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: limit},
		Protocols: protocols,
	}
	if len(os.Args) > 4 {
		log.Fatal(server.ListenAndServeTLS(os.Args[4], os.Args[3]))
	}
	log.Fatal(server.ListenAndServe())
}
