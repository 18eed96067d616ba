// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The demo's authorization server: oidc-provider with one client, which may get access tokens for the market-data
// API by the client-credentials grant. Tokens are JWTs (RFC 9068) that live for five minutes.
//
// Environment: PORT, TLS_CERT, TLS_KEY, ISSUER, RESOURCE (the API that tokens are for), CLIENT_ID,
// CLIENT_SECRET_FILE, ISSUED_FILE (each token that was issued is appended: the demo searches the sandbox for them).

import { execFileSync } from 'node:child_process';
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import fs from 'node:fs';
import https from 'node:https';
import Provider from 'oidc-provider';

const { PORT, TLS_CERT, TLS_KEY, ISSUER, RESOURCE, CLIENT_ID, CLIENT_SECRET_FILE, ISSUED_FILE } = process.env;

const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });

const provider = new Provider(ISSUER, {
        clients: [{
                client_id: CLIENT_ID,
                client_secret: fs.readFileSync(CLIENT_SECRET_FILE, 'utf8').trim(),
                grant_types: ['client_credentials'],
                redirect_uris: [],
                response_types: [],
                id_token_signed_response_alg: 'ES256',
        }],
        jwks: { keys: [{ ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'ES256' }] },
        scopes: ['prices:read'],
        cookies: { keys: [randomBytes(32).toString('hex')] },
        features: {
                devInteractions: { enabled: false },
                clientCredentials: { enabled: true },
                resourceIndicators: {
                        enabled: true,
                        defaultResource: () => RESOURCE,
                        getResourceServerInfo: () => ({
                                audience: RESOURCE,
                                scope: 'prices:read',
                                accessTokenFormat: 'jwt',
                                accessTokenTTL: 300,
                                jwt: { sign: { alg: 'ES256' } },
                        }),
                },
        },
});

provider.use(async (context, next) => {
        await next();
        if (context.path === '/token') {
                console.log(`token request: ${context.status} ${context.body?.error_description ?? ''}`);
                if (context.body?.access_token)
                        fs.appendFileSync(ISSUED_FILE, `${context.body.access_token}\n`, { mode: 0o600 });
        }
});

https.createServer({ cert: fs.readFileSync(TLS_CERT), key: fs.readFileSync(TLS_KEY) }, provider.callback())
        .listen(PORT, '127.0.0.1', () => {
                console.log(`issuer ${ISSUER}`);
                if (process.env.NOTIFY_SOCKET)
                        execFileSync('systemd-notify', ['--ready']);
        });
